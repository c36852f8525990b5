// The overview: what is served, rates of the last minutes, latencies, slow requests, and what fills memory and flash.

import { bar, drawTimes, histogram } from "./charts.js";
import { about, bytes, cardOf, clock, data, drawn, duration, element, number, numbers, percent, refill, span, table } from "./elements.js";
import { ask } from "./requests.js";

const KEPT_MS = 5 * 60_000;
const LATELY_MS = 60_000;
const SHORTEST_MS = 30_000; // of time that a chart shows

function sum(figures, pattern) {
  return Object.entries(figures).reduce((total, [name, value]) => total + (pattern.test(name) ? Number(value) : 0), 0);
}

const figure = (name) => (figures) => Number(figures[name] ?? 0);

// Charts of rates. Each line is a counter that is read from the figures; `write` writes its rate a second.
const CHARTS = [
  { name: "Requests a second", write: about, lines: [["gets", figure("cmd_get")], ["sets", figure("cmd_set")]] },
  { name: "Gets a second, by their end", write: about, lines: [["hits", figure("get_hits")], ["misses", figure("get_misses")]] },
  { name: "Clients' bytes a second", write: bytes, lines: [["received", figure("bytes_read")], ["sent", figure("bytes_written")]] },
  { name: "Processor time, of one core", write: (cores) => percent(cores, 1), lines: [["host", figure("cpu_host")], ["drive", figure("cpu_drive")]] },
  { name: "Bytes read a second", write: bytes,
    lines: [["flash → drive", figure("flash_to_local_bytes")], ["drive → host", figure("local_to_host_bytes")]] },
  { name: "Bytes written a second", write: bytes,
    lines: [["host → drive", (all) => sum(all, /^drive_.*_host_to_local_bytes$/)], ["drive → flash", (all) => sum(all, /^drive_.*_local_to_flash_bytes$/)]] },
];

// Answers of the last minutes, oldest first: {ms, counters: one a line of a chart, latencies}.
const samples = [];
let newest = null;

/** Keeps what the charts need of an answer. Counters begin at 0 again with a new server, and after `stats reset`. */
export function keep(answer) {
  const counters = CHARTS.flatMap(({ lines }) => lines.map(([, counter]) => counter(answer.figures)));
  const last = samples.at(-1);
  if (last && (answer.unix_ms < last.ms || counters.some((count, line) => count < last.counters[line]))) samples.length = 0;
  newest = answer;
  if (last?.ms === answer.unix_ms) return;
  samples.push({ ms: answer.unix_ms, counters, latencies: answer.latencies ?? {} });
  while (samples[0].ms < answer.unix_ms - KEPT_MS) samples.shift();
}

/** A counter's rates a second, between each two answers. */
function rates(counter) {
  return samples.slice(1).map((sample, before) => {
    const more = sample.counters[counter] - samples[before].counters[counter];
    return [sample.ms, Math.max(0, (more * 1000) / (sample.ms - samples[before].ms))];
  });
}

const boxes = {};
let charts = [];

const card = (id, title) => cardOf(boxes, id, title);

/** A chart with its figures; `first` is the counter of its first line. */
function rateCard(chart, first) {
  const values = chart.lines.map(() => element("b", {}, "–"));
  const legend = chart.lines.map(([name], line) => element("li", {}, element("span", { class: `swatch back-${line}` }), `${name} `, values[line]));
  const drawing = drawn("svg", { class: "times" }), most = element("p", { class: "most" });
  const box = element("figure", { class: "card" }, element("figcaption", {}, chart.name), element("ul", { class: "legend" }, ...legend), drawing, most);
  return { ...chart, first, values, drawing, most, box };
}

export function build() {
  samples.length = 0;
  newest = null;
  let first = 0;
  charts = CHARTS.map((chart) => {
    const made = rateCard(chart, first);
    first += chart.lines.length;
    return made;
  });
  return [
    element("div", { class: "columns" }, card("served", "Served"), card("totals", "Since the start")),
    element("h2", {}, "The last minutes"),
    element("div", { class: "columns", id: "rates" }, ...charts.map(({ box }) => box)),
    card("latencies", "Latencies"),
    element("div", { class: "columns" }, card("memory", "What fills memory"), card("flash", "What fills flash")),
    card("slow", "Slow requests"),
  ];
}

/** Draws the newest figures. `isSlowDue`: asks for slow requests too. */
export async function refresh(isSlowDue = true) {
  if (!newest) return;
  drawRates();
  drawServed();
  drawLatencies();
  drawFilled("memory", newest.memory ?? []);
  drawFilled("flash", newest.flash ?? []);
  if (isSlowDue) drawSlow((await ask("slow")).slow);
}

function drawRates() {
  const to = newest.unix_ms, from = Math.min(samples[0].ms, to - SHORTEST_MS);
  for (const { name, write, lines, first, values, drawing, most } of charts) {
    const series = lines.map(([line], nth) => ({ name: line, points: rates(first + nth) }));
    const now = series.map(({ points }) => (points.length > 0 ? write(points.at(-1)[1]) : "–"));
    values.forEach((value, line) => value.replaceChildren(now[line]));
    const highest = drawTimes(drawing, `${name}: ${series.map((line, nth) => `${line.name} ${now[nth]}`).join(", ")}`, series, from, to);
    most.textContent = `${span(to - from)}, at most ${write(highest)}`;
  }
}

function facts(pairs) {
  return element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function drawServed() {
  const { figures, doors, unix_ms: now, started_unix_ms: start } = newest;
  refill(boxes.served, facts([
    ["version", data(figures.version ?? "")], ["up for", `${span(now - start)}, since ${clock(start)}`],
    ...doors.map(({ door, address }) => [door, data(address)])]));
  const items = newest.keyspaces.reduce((total, keyspace) => total + Number(keyspace.items), 0);
  const gets = Number(figures.cmd_get ?? 0), hits = Number(figures.get_hits ?? 0);
  refill(boxes.totals, facts([
    ["items", number(items)], ["keyspaces", number(newest.keyspaces.length)],
    ["gets", `${number(gets)}, ${percent(hits, gets)} hits`], ["sets", number(Number(figures.cmd_set ?? 0))],
    ["connected clients", number(Number(figures.curr_connections ?? 0))],
    ["written by clients", `${bytes(figures.user_write_bytes ?? 0)}, ${bytes(figures.flash_write_bytes ?? 0)} to flash`]]));
}

/** The upper bound of the bucket in which the request at this part of all lies. */
function quantile(counts, bounds, part) {
  const total = counts.reduce((all, count) => all + count, 0);
  let seen = 0;
  const place = counts.findIndex((count) => (seen += count) >= part * total && count > 0);
  if (total === 0) return "–";
  return place < bounds.length ? `≤ ${duration(bounds[place])}` : `> ${duration(bounds.at(-1))}`;
}

function quantileRow(name, { bounds_us: bounds, counts, total_us: took }) {
  const total = counts.reduce((all, count) => all + count, 0);
  return [name, number(total), ...[0.5, 0.99, 0.999].map((part) => quantile(counts, bounds, part)), total > 0 ? duration(took / total) : "–"];
}

/** The requests between an earlier answer and the newest one. */
function since(earlier, newer) {
  if (!earlier || earlier.counts.length !== newer.counts.length) return newer;
  return { ...newer, counts: newer.counts.map((count, place) => count - earlier.counts[place]), total_us: newer.total_us - earlier.total_us };
}

function drawLatencies() {
  const earlier = samples.find(({ ms }) => ms >= newest.unix_ms - LATELY_MS)?.latencies ?? {};
  const all = Object.entries(newest.latencies ?? {}).map(([name, latency]) => [name.replaceAll("_", " "), latency, earlier[name]]);
  const rows = all.flatMap(([name, latency, before]) => [
    quantileRow(`${name}, last minute`, since(before, latency)), quantileRow(`${name}, since the start`, latency)]);
  const columns = ["requests", "number", "P50", "P99", "P99.9", "mean"].map((name, place) => (place === 0 ? name : numbers(name)));
  refill(boxes.latencies, table("Times until the answer, by the bounds that they stay below", columns, rows, { isCaptionHidden: true }),
    element("div", { class: "columns" }, ...all.map(([name, latency]) => latencyFigure(name, latency))));
}

function latencyFigure(name, { bounds_us: bounds, counts }) {
  const names = counts.map((_, place) => (place < bounds.length ? `up to ${duration(bounds[place])}` : `over ${duration(bounds.at(-1))}`));
  return element("figure", {}, element("figcaption", {}, `${name}, since the start`),
    histogram(`Latencies of ${name}: how many requests took how long`, counts, names),
    element("p", { class: "ends" }, element("span", {}, duration(bounds[0])), element("span", {}, duration(bounds.at(-1)))));
}

function drawFilled(id, parts) {
  const whole = parts.reduce((total, part) => total + Number(part.bytes), 0);
  const rows = parts.map(({ name, bytes: size }, nth) => [
    name, bar(size / (whole || 1), name === "free" ? 5 : nth % 5), bytes(size), percent(size, whole)]);
  refill(boxes[id], table(`${bytes(whole)} in all`, ["part", "", numbers("size"), numbers("share")], rows));
}

function drawSlow(slow) {
  const columns = ["when", numbers("took"), "operation", "keyspace", "key"];
  const rows = slow.map((request) => [clock(request.unix_ms), duration(request.took_us), request.operation, data(request.keyspace ?? "–"), data(request.key)]);
  refill(boxes.slow, rows.length === 0 ? "No request was slow of late."
    : table(`Those that took 10 ms or longer, the newest first: ${number(rows.length)}`, columns, rows));
}
