// The query box: a statement at the drive, on the host, or at both beside each other.

import { SIDES, SIDE_NAMES, askSides, costTable, rowsTable } from "./answers.js";
import { chartOf, drawable } from "./charts.js";
import { data, duration, element, failure, notice, number } from "./elements.js";
import { keyspaces } from "./keyspaces.js";
import { named } from "./requests.js";

const EXAMPLES_SHOWN = 8;
const CHOICES = [["drive", "at the drive"], ["host", "on the host"], ["both", "both, beside each other"]];

const DIFFERENT = "The two gave different rows: something was written between them, or the statement leaves open which rows it takes.";

let parts = null;
let stop = null;

export function build() {
  const statement = element("textarea", { id: "sql", rows: 4, spellcheck: "false", autocapitalize: "none", "aria-describedby": "sql-help", keydown: onKey });
  const sides = element("fieldset", { class: "row" }, element("legend", {}, "Where it is computed"), ...CHOICES.map(([value, text]) =>
    element("label", {}, element("input", { type: "radio", name: "side", value, checked: value === "both" }), ` ${text}`)));
  parts = { statement, sides, run: element("button", { type: "submit", class: "main" }, "Run"), examples: element("div", { id: "examples" }),
    stop: element("button", { type: "button", hidden: true, click: () => stop?.abort() }, "Stop waiting"),
    told: element("p", { id: "told", role: "status" }), answer: element("div", { id: "answer" }) };
  const form = element("form", { id: "query-form", class: "card", submit: (event) => {
    event.preventDefault();
    run();
  } }, element("label", { for: "sql" }, "Statement"), statement,
  element("p", { id: "sql-help" }, "SQL's select on one keyspace. Ctrl+Enter runs it."), sides, element("div", { class: "row" }, parts.run, parts.stop));
  return [form, parts.told, parts.answer, element("section", { class: "card", "aria-labelledby": "examples-title" },
    element("h2", { id: "examples-title" }, "Examples"), parts.examples)];
}

function onKey(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
}

/** Fields of a format by their names and types, those of the key first. */
function fieldsOf(format) {
  const fields = [];
  for (const half of format.split(";")) {
    for (const field of half.replace(/^\s*(key|value):/, "").split(",")) {
      const [name, type] = field.trim().split(/\s+/);
      if (type) fields.push({ name, isNumber: /^[iuf]\d/.test(type), isText: type.startsWith("string") || / string\??$/.test(field) });
    }
  }
  return fields;
}

/** Statements that a keyspace can answer, by its format. */
function examplesOf({ name, format }) {
  const from = named(name);
  if (format === null) return [`select * from ${from} limit 20`];
  const fields = fieldsOf(format);
  const year = fields.find((field) => field.name === "year"), text = fields.find((field) => field.isText && field.name !== "title" && field.name !== "name");
  return [
    year ? `select year, count(*) as n from ${from} group by year order by year` : null,
    text ? `select ${named(text.name)}, count(*) as n from ${from} group by ${named(text.name)} order by n desc limit 20` : null,
    `select * from ${from} limit 20`,
  ].filter((example) => example !== null);
}

/** Offers examples of the keyspaces that there are. */
export async function refresh() {
  if (parts.examples.childElementCount > 0) return;
  const readable = (await keyspaces()).filter((keyspace) => keyspace.block_device_bytes === null);
  const ranked = readable.toSorted((one, other) => (one.format === null) - (other.format === null) || (one.name !== "papers") - (other.name !== "papers"));
  const all = ranked.flatMap(examplesOf).slice(0, EXAMPLES_SHOWN);
  if (all.length > 0 && parts.statement.value === "" && document.activeElement !== parts.statement) parts.statement.value = all[0];
  parts.examples.replaceChildren(...all.map((example) => element("button", { type: "button", class: "example", click: () => {
    parts.statement.value = example;
    parts.statement.focus();
  } }, data(example))));
}

async function run() {
  const sql = parts.statement.value.trim();
  if (sql === "" || stop !== null) return;
  const side = parts.sides.querySelector("input:checked").value;
  stop = new AbortController();
  parts.run.disabled = true;
  parts.stop.hidden = false;
  parts.told.textContent = "Asking …";
  parts.answer.replaceChildren();
  try {
    show(await askSides("query", { sql }, side === "both" ? SIDES : [side], stop.signal));
  } catch (error) {
    parts.told.textContent = "";
    parts.answer.replaceChildren(failure(error));
  } finally {
    stop = null;
    parts.run.disabled = false;
    parts.stop.hidden = true;
  }
}

/** Whether both sides gave the same rows, in whatever order; null where that cannot be told. */
function areSame([one, other]) {
  if (other === undefined || one.is_cut || other.is_cut) return null;
  const sorted = ({ rows }) => JSON.stringify(rows.map((row) => JSON.stringify(row)).toSorted());
  return sorted(one) === sorted(other);
}

function show(answers) {
  const [answer] = answers, same = areSame(answers);
  const misfits = answer.report.misfits ?? 0;
  parts.told.textContent = answers.map(({ rows, report }) =>
    `${number(rows.length)} row${rows.length === 1 ? "" : "s"} ${SIDE_NAMES[report.side]} in ${duration(report.elapsed_us)}`).join(", ");
  parts.answer.replaceChildren(
    costTable([{ name: "statement", reports: answers.map(({ report }) => report) }]),
    same === null ? "" : same ? element("p", {}, "Both gave the same rows.") : notice(DIFFERENT),
    misfits > 0 ? notice(`${misfits} records did not fit the format, and were left out.`) : "",
    chartBox(answer), rowsTable(answer));
}

function chartBox(answer) {
  const how = drawable(answer);
  if (how === null) return "";
  const box = element("div", {}), width = Math.max(280, Math.min(900, parts.answer.clientWidth - 24));
  const draw = (asLine) => box.replaceChildren(chartOf(answer, how, asLine, width));
  draw(how.isLine);
  const choice = [[true, "line"], [false, "bars"]].map(([asLine, text]) => element("label", {},
    element("input", { type: "radio", name: "chart", checked: asLine, change: () => draw(asLine) }), ` ${text}`));
  return element("section", { class: "card", "aria-label": "Chart" },
    how.isLine ? element("fieldset", { class: "row" }, element("legend", {}, "Chart"), ...choice) : "", box);
}
