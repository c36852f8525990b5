// Elements of the page, and how figures are written.
//
// Invariant: text of the store goes in by textContent alone, through `data`, `table` or a string child. Names of
// attributes are constants of this program. So keys and values stay text, whatever they hold.

const DRAWING = "http://www.w3.org/2000/svg";
const SHOWN_CHARACTERS = 240; // of one key or value; the rest opens with a click

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** An HTML element. Functions among the attributes listen to the event of that name. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An element of a drawing. */
export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(DRAWING, name), attributes, children);
}

/** A card with a title. Its box, in which its content is drawn, is put into `boxes` by its id. */
export function cardOf(boxes, id, title) {
  boxes[id] = element("div", {});
  return element("section", { class: "card", id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title), boxes[id]);
}

// Control characters, and characters that have no width or change the direction of what stands beside them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu;
const ESCAPES = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

function escaped(character) {
  const code = character.codePointAt(0);
  return ESCAPES[character] ?? (code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16)}`);
}

function visible(text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > end) parts.push(text.slice(end, found.index));
    parts.push(element("span", { class: "escape" }, escaped(found[0])));
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}

/** A key or value of the store: its own direction, unseen characters as escapes, a long one cut until it is opened. */
export function data(value) {
  const text = String(value);
  if (text.length <= SHOWN_CHARACTERS) return element("bdi", { class: "data" }, ...visible(text));
  const start = Array.from(text.slice(0, SHOWN_CHARACTERS)).slice(0, -1).join("");
  const whole = element("bdi", { class: "data" }, ...visible(start));
  const rest = element("button", { type: "button", class: "quiet" }, `… all ${number(text.length)} characters`);
  rest.addEventListener("click", () => {
    whole.replaceChildren(...visible(text));
    whole.tabIndex = -1;
    rest.remove();
    whole.focus();
  });
  return element("span", {}, whole, " ", rest);
}

/** A table that scrolls by itself where it is wider than the page. Columns are names, or {name, isNumber}. */
export function table(caption, columns, rows, { isCaptionHidden = false } = {}) {
  const heads = columns.map((column) => {
    const { name, isNumber = false } = typeof column === "string" ? { name: column } : column;
    return { isNumber, head: element("th", { scope: "col", class: isNumber ? "number" : null }, ...visible(name)) };
  });
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, place) =>
    element("td", { class: heads[place].isNumber ? "number" : null }, cell))));
  return element("div", { class: "scrolls" }, element("table", {},
    element("caption", { class: isCaptionHidden ? "unseen" : null }, caption),
    element("thead", {}, element("tr", {}, ...heads.map(({ head }) => head))),
    element("tbody", {}, ...body)));
}

/** A column of numbers. */
export function numbers(name) {
  return { name, isNumber: true };
}

/** Exchanges what a box shows, unless the reader has the focus or a selection in it. Tables stay scrolled as they are. */
export function refill(box, ...children) {
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && box.contains(selection.anchorNode);
  if (isSelected || (box !== document.activeElement && box.contains(document.activeElement))) return;
  const scrolled = Array.from(box.querySelectorAll(".scrolls"), ({ scrollLeft }) => scrollLeft);
  box.replaceChildren(...children);
  box.querySelectorAll(".scrolls").forEach((scroller, place) => { scroller.scrollLeft = scrolled[place] ?? 0; });
}

export function notice(text) {
  return element("p", { class: "notice" }, text);
}

export function failure(error) {
  return element("p", { class: "error", role: "alert" }, error.message);
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const LONG = new Intl.NumberFormat("en", { maximumFractionDigits: 4 });

export function number(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? WHOLE.format(value) : LONG.format(value);
}

/** Three digits, for rates. */
export function about(value) {
  return value >= 1000 ? WHOLE.format(value) : SHORT.format(value);
}

const SIZES = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = Number(value), place = 0;
  while (size >= 1024 && place + 1 < SIZES.length) {
    size /= 1024;
    place += 1;
  }
  return `${about(place === 0 ? Math.round(size) : size)} ${SIZES[place]}`;
}

/** A duration, given in microseconds. */
export function duration(us) {
  if (us < 1000) return `${about(us)} µs`;
  return us < 1e6 ? `${about(us / 1e3)} ms` : `${about(us / 1e6)} s`;
}

export function percent(part, whole) {
  return whole > 0 ? `${SHORT.format((100 * part) / whole)} %` : "–";
}

/** A span of time in its two largest units, given in milliseconds. */
export function span(ms) {
  const seconds = Math.floor(ms / 1000), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (hours >= 24) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return minutes > 0 ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

export function clock(unixMs) {
  return new Date(unixMs).toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC");
}
