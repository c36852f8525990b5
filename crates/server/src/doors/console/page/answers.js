// Answers of queries: their rows, and what they cost at the drive and on the host.

import { bytes, data, duration, element, number, numbers, table } from "./elements.js";
import { ask } from "./requests.js";

/** Where a request is computed, the drive first. */
export const SIDES = ["drive", "host"];
export const SIDE_NAMES = { drive: "at the drive", host: "on the host" };

/** Asks the same of each side, one after the other, so that neither waits for the other. */
export async function askSides(name, body, sides = SIDES, signal = undefined) {
  const answers = [];
  for (const side of sides) answers.push(await ask(name, { ...body, side }, signal));
  return answers;
}

function cell(value, type) {
  if (value === null) return element("span", { class: "null" }, "NULL");
  // A number is not grouped: it may be a year or an id.
  return type === "int" ? String(value) : type === "float" ? number(value) : data(value);
}

/** The rows of an answer. `cells` may make another cell of a value, by the column's name. */
export function rowsTable({ columns, rows, is_cut: isCut }, caption = null, cells = {}) {
  const heads = columns.map(({ name, type }) => ({ name, isNumber: type === "int" || type === "float" }));
  const count = `${number(rows.length)} row${rows.length === 1 ? "" : "s"}`;
  const told = isCut ? `The first ${count}; there are more` : count;
  return table(caption === null ? told : `${caption}: ${told}`, heads, rows.map((row) => row.map((value, place) =>
    (Object.hasOwn(cells, columns[place].name) ? cells[columns[place].name] : cell)(value, columns[place].type, row))));
}

const COSTS = ["time", "processor", "from flash", "to the drive", "to the host", "records", "kept"];

/** What each part cost, with all else that the server did meanwhile. Parts are {name, reports}. */
export function costTable(parts, caption = "What it took, with all else that the server did meanwhile") {
  const rows = parts.flatMap(({ name, reports }) => reports.filter((report) => report !== null).map((report, nth) => [
    nth === 0 ? name : "", SIDE_NAMES[report.side] ?? report.side, duration(report.elapsed_us), duration(report.cpu_us), bytes(report.flash_bytes),
    bytes(report.to_drive_bytes), bytes(report.to_host_bytes), number(report.records), number(report.kept)]));
  return element("div", { class: "costs" }, table(caption, ["part", "computed", ...COSTS.map(numbers)], rows));
}
