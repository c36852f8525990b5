// Charts: small ones of the last minutes, bars beside names, histograms, and those of an answer.
//
// Each is a picture with a label that tells what it shows; the figures themselves stand in a table or text beside it.

import { about, data, drawn, element, number } from "./elements.js";

const COLOURS = 6; // classes series-0 … series-5 of console.css
const BARS_SHOWN = 50;
const GAP_MS = 5000; // a line is interrupted where nothing was asked for so long

/** Draws lines over time into `svg`. Series are {name, points: [[ms, value | null], …]}. Returns the largest value. */
export function drawTimes(svg, label, series, fromMs, toMs) {
  const width = 300, height = 64;
  const values = series.flatMap(({ points }) => points.map(([, value]) => value ?? 0));
  const most = Math.max(0, ...values);
  const x = (ms) => ((ms - fromMs) / (toMs - fromMs)) * width;
  const y = (value) => height - 2 - (value / (most || 1)) * (height - 6);
  const lines = series.map(({ points }, place) => {
    let path = "", before = null;
    for (const [ms, value] of points) {
      if (value !== null) path += `${before !== null && ms - before < GAP_MS ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}`;
      before = value === null ? null : ms;
    }
    return drawn("path", { d: path, class: `line series-${place % COLOURS}` });
  });
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(drawn("path", { d: `M0 ${height - 2}H${width}`, class: "axis" }), ...lines);
  return most;
}

/** A bar that fills a part, from 0 to 1, of its width. */
export function bar(part, place = 0) {
  const fill = element("span", { class: `fill back-${place % COLOURS}` });
  fill.style.width = `${Math.min(100, Math.max(0, 100 * part))}%`;
  return element("span", { class: "track", "aria-hidden": "true" }, fill);
}

/** Columns of a histogram: `counts` under names of their bounds. */
export function histogram(label, counts, names) {
  const width = 12 * counts.length, height = 72, most = Math.max(1, ...counts);
  const columns = counts.map((count, place) => {
    // A bucket that has anything can be seen.
    const tall = count === 0 ? 0 : Math.max(1.5, (count / most) * (height - 2));
    return drawn("rect", { x: 12 * place + 1, y: height - tall, width: 10, height: tall, class: "bar series-0" },
      drawn("title", {}, `${names[place]}: ${number(count)}`));
  });
  return drawn("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    drawn("path", { d: `M0 ${height - 0.5}H${width}`, class: "axis" }), ...columns);
}

/** Round numbers from below the least to above the most, about as many as `count`. */
export function ticks(least, most, count) {
  const rough = (most - least || Math.abs(most) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.floor(least / step), last = Math.ceil(most / step);
  return Array.from({ length: last - first + 1 }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}

const NUMERIC = new Set(["int", "float"]);

/** How an answer can be drawn: its label column and columns of numbers; null where it cannot. */
export function drawable({ columns, rows }) {
  if (columns.length < 2 || rows.length < 2 || columns.length > 1 + COLOURS) return null;
  if (!columns.slice(1).every(({ type }) => NUMERIC.has(type))) return null;
  const isLine = NUMERIC.has(columns[0].type) && rows.every(([label]) => typeof label === "number");
  return { isLine, names: columns.slice(1).map(({ name }) => name), label: columns[0].name };
}

function numeric(value) {
  const read = typeof value === "string" ? Number(value) : value;
  return typeof read === "number" && Number.isFinite(read) ? read : null;
}

/** The chart of an answer that is `drawable`, for a box so many pixels wide. */
export function chartOf(answer, { isLine, names, label }, asLine, width) {
  const most = `${names.join(", ")} by ${label}; the table below has the figures`;
  const drawing = asLine && isLine ? lines(answer.rows, most, names.length, width) : bars(answer.rows, most, names.length, width);
  const keys = names.length === 1 ? [] : names.map((name, place) =>
    element("li", {}, element("span", { class: `swatch back-${place}` }), data(name)));
  return element("figure", { class: "chart" }, drawing, keys.length > 0 ? element("ul", { class: "legend" }, ...keys) : null,
    !(asLine && isLine) && answer.rows.length > BARS_SHOWN ? element("figcaption", {}, `The first ${BARS_SHOWN} rows are drawn.`) : null);
}

function lines(rows, label, series, width) {
  const height = 260, left = 64, bottom = 28, right = 24, sorted = rows.toSorted((one, other) => one[0] - other[0]);
  const values = sorted.flatMap((row) => row.slice(1).map(numeric).filter((value) => value !== null));
  const yTicks = ticks(Math.min(0, ...values), Math.max(0, ...values), 4);
  const [low, high] = [yTicks[0], yTicks.at(-1)], [first, last] = [sorted[0][0], sorted.at(-1)[0]];
  const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low || 1)) * (height - bottom - 10);
  const parts = yTicks.flatMap((tick) => [
    drawn("path", { d: `M${left} ${y(tick)}H${width - right}`, class: "axis" }),
    drawn("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, about(tick))]);
  for (const tick of ticks(first, last, Math.max(2, Math.floor(width / 80)))) {
    if (tick >= first && tick <= last) parts.push(drawn("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, String(tick)));
  }
  for (let place = 0; place < series; place += 1) {
    const points = sorted.map((row) => [row[0], numeric(row[place + 1])]).filter(([, value]) => value !== null);
    const path = points.map(([at, value], nth) => `${nth === 0 ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    parts.push(drawn("path", { d: path, class: `line series-${place}` }));
    if (points.length <= 60) parts.push(...points.map(([at, value]) => drawn("circle", { cx: x(at), cy: y(value), r: 3, class: `dot series-${place}` })));
  }
  return drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
}

function shortened(value, characters) {
  const text = Array.from(String(value ?? "NULL"));
  return text.length <= characters ? text.join("") : `${text.slice(0, characters - 1).join("")}…`;
}

function bars(rows, label, series, width) {
  const shown = rows.slice(0, BARS_SHOWN), left = Math.min(180, width * 0.35), right = 70, thick = 14, step = thick * series + 8;
  const values = shown.flatMap((row) => row.slice(1).map((value) => numeric(value) ?? 0));
  const low = Math.min(0, ...values), high = Math.max(0, ...values);
  const x = (value) => left + ((value - low) / (high - low || 1)) * (width - left - right);
  const parts = shown.flatMap((row, nth) => [
    drawn("text", { x: left - 6, y: nth * step + (thick * series) / 2 + 5, "text-anchor": "end" }, shortened(row[0], Math.floor(left / 7.5))),
    ...row.slice(1).flatMap((value, place) => {
      const read = numeric(value) ?? 0, top = nth * step + place * thick + 1;
      return [
        drawn("rect", { x: Math.min(x(0), x(read)), y: top, width: Math.max(1, Math.abs(x(read) - x(0))), height: thick - 2, class: `bar series-${place}` }),
        drawn("text", { x: Math.max(x(0), x(read)) + 5, y: top + thick - 3 }, value === null ? "NULL" : about(read))];
    })]);
  const height = shown.length * step;
  return drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
}
