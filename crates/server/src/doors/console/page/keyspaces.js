// Keyspaces: their sizes and formats, and samples of their items when asked for.

import { bytes, clock, data, element, failure, number, numbers, refill, table } from "./elements.js";
import { ask } from "./requests.js";

let list = null;
let sample = null;
let asking = null; // the sample that is asked for

export function build() {
  list = element("div", { id: "keyspace-list" });
  sample = element("section", { id: "sample", class: "card", "aria-labelledby": "sample-title", hidden: true });
  return [list, sample];
}

/** All keyspaces that this user may see. */
export async function keyspaces() {
  return (await ask("keyspaces")).keyspaces;
}

/** `written`: bytes that were written to each, by name, where the figures may be seen. */
export async function refresh(written) {
  const all = await keyspaces();
  const shown = COLUMNS.filter(({ isThere = () => true }) => isThere(all, written));
  const rows = all.map((keyspace) => shown.map(({ cell }) => cell(keyspace, written)));
  refill(list, all.length === 0 ? element("p", {}, "There is none that you may read.")
    : table(`${number(all.length)} keyspaces`, shown.map(({ column }) => column), rows));
}

// Columns of the list. Some are there only if the server tells their figures.
const COLUMNS = [
  { column: "keyspace", cell: ({ name }) => data(name) },
  { column: "kind", cell: kindOf },
  { column: numbers("items"), cell: ({ items }) => number(items) },
  { column: numbers("written"), isThere: (_, written) => written.size > 0, cell: ({ name }, written) => bytes(written.get(name)) },
  { column: numbers("flash"), isThere: (all) => all.some(({ flash_bytes: flash }) => Number.isFinite(flash)), cell: ({ flash_bytes: flash }) => bytes(flash) },
  { column: "format", cell: ({ format }) => (format === null ? "–" : data(format)) },
  { column: "samples", cell: sampleButton },
];

function sampleButton({ name, block_device_bytes: device }) {
  return device === null ? element("button", { type: "button", "data-keyspace": name, click: () => showSample(name, "") }, "Show") : "–";
}

function kindOf(keyspace) {
  if (keyspace.block_device_bytes !== null) return `block device of ${bytes(keyspace.block_device_bytes)}`;
  return keyspace.kind;
}

async function showSample(name, prefix) {
  const entry = element("input", { id: "sample-prefix", value: prefix, autocapitalize: "none", spellcheck: "false" });
  const shown = element("div", {}, "Asking …");
  const form = element("form", { class: "row", submit: (event) => {
    event.preventDefault();
    fill(shown, name, entry.value);
  } }, element("label", { for: "sample-prefix" }, "Keys that begin with"), entry, element("button", { type: "submit" }, "Show"),
  element("button", { type: "button", click: () => closeSample(name) }, "Close"));
  const title = element("h2", { id: "sample-title", tabindex: -1 }, "Items of ", data(name));
  sample.replaceChildren(title, form, shown);
  sample.hidden = false;
  title.focus();
  await fill(shown, name, prefix);
}

/** Ends what is asked for, and goes back to the button that opened it. */
function closeSample(name) {
  asking?.abort();
  sample.hidden = true;
  [...list.querySelectorAll("button")].find((button) => button.dataset.keyspace === name)?.focus();
}

async function fill(shown, name, prefix) {
  asking?.abort();
  const own = new AbortController();
  asking = own;
  try {
    const { items, is_cut: isCut } = await ask("sample", { keyspace: name, prefix }, own.signal);
    if (own !== asking) return;
    const rows = items.map((item) => [data(item.key), data(item.value), bytes(item.value_bytes), number(item.flags),
      item.expires_unix_ms === null ? "never" : clock(item.expires_unix_ms)]);
    shown.replaceChildren(rows.length === 0 ? "No key begins so." : table(isCut ? `The first ${number(rows.length)}; there are more` : `All ${number(rows.length)}`,
      ["key", "value, its beginning", numbers("size"), numbers("flags"), "expires"], rows));
  } catch (error) {
    if (own === asking) shown.replaceChildren(failure(error));
  }
}
