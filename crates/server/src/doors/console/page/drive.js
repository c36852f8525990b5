// The drive: its map, stages of programs, applications that share its units, and freezes.

import { bytes, cardOf, data, drawn, duration, element, number, numbers, percent, refill, table } from "./elements.js";
import { ask } from "./requests.js";

const CELL = 9; // pixels, with its gap
const NARROWEST = 24; // cells in a row

// Kinds that have a colour of their own in console.css; `data` has four, by its valid share.
const COLOURED = new Set(["superblock", "manifest", "manifest-copy", "log", "keys", "large", "nodes", "extensions", "held", "checkpoint", "free", "unused"]);

const boxes = {};
let map = null;
let perRow = NARROWEST;
let current = 0;
let parts = null;

function colour([kind, valid]) {
  if (kind === "data") return `cell-data-${Math.min(3, Math.floor(valid / 25))}`;
  return COLOURED.has(kind) ? `cell-${kind}` : "cell-other";
}

const card = (id, title) => cardOf(boxes, id, title);

export function build() {
  map = null;
  const cursor = drawn("rect", { class: "cursor", width: CELL, height: CELL });
  const drawing = drawn("svg", { id: "map", tabindex: 0, role: "slider", "aria-label": "Map of the drive. Arrow keys go from cell to cell.", "aria-valuemin": 0,
    keydown: onKey, pointermove: onPointer, pointerdown: onPointer });
  parts = { cursor, drawing, told: element("p", { id: "map-cell" }), legend: element("div", {}) };
  const shown = card("map-card", "Map");
  boxes["map-card"].append(drawing, parts.told, parts.legend);
  return [shown, card("stages", "Stages of programs"), card("applications", "Applications that share the drive"), card("freezes", "Freezes")];
}

/** Draws what the newest figures say, and asks for the map when that is due. */
export async function refresh(figures, isMapDue) {
  if (figures) drawTables(figures);
  if (!isMapDue) return;
  map = await ask("map");
  drawMap();
  drawLegend();
  drawFreezes(map.freezes ?? []);
}

/** One path for all cells of a colour: the drawing stays small. */
function drawMap() {
  perRow = Math.max(NARROWEST, Math.floor((boxes["map-card"].clientWidth || 640) / CELL));
  const paths = new Map();
  map.cells.forEach((cell, place) => {
    const x = (place % perRow) * CELL, y = Math.floor(place / perRow) * CELL, name = colour(cell);
    paths.set(name, `${paths.get(name) ?? ""}M${x} ${y}h${CELL - 1}v${CELL - 1}h${1 - CELL}z`);
  });
  const width = perRow * CELL, height = Math.ceil(map.cells.length / perRow) * CELL;
  const sizes = { width, height, viewBox: `0 0 ${width} ${height}`, "aria-valuemax": map.cells.length - 1 };
  for (const [name, value] of Object.entries(sizes)) parts.drawing.setAttribute(name, value);
  parts.drawing.replaceChildren(...Array.from(paths, ([name, d]) => drawn("path", { d, class: name })), parts.cursor);
  goTo(Math.min(current, map.cells.length - 1));
}

function nameOf(kind) {
  return kind.replaceAll("-", " ");
}

function goTo(place) {
  current = place;
  const [kind, valid] = map.cells[place], from = place * map.cell_bytes;
  const share = kind === "data" ? `, ${valid} % valid` : "";
  const text = `Cell ${number(place + 1)} of ${number(map.cells.length)}: ${nameOf(kind)}${share}; ${bytes(map.cell_bytes)} from ${bytes(from)} on`;
  parts.cursor.setAttribute("x", (place % perRow) * CELL - 0.5);
  parts.cursor.setAttribute("y", Math.floor(place / perRow) * CELL - 0.5);
  parts.drawing.setAttribute("aria-valuenow", place);
  parts.drawing.setAttribute("aria-valuetext", text);
  parts.told.textContent = text;
}

function onKey(event) {
  if (!map) return;
  const last = map.cells.length - 1;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -perRow, ArrowDown: perRow, Home: -last, End: last };
  if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  goTo(Math.max(0, Math.min(last, current + steps[event.key])));
}

function onPointer(event) {
  if (!map) return;
  const box = parts.drawing.getBoundingClientRect(), scale = (perRow * CELL) / box.width;
  const column = Math.floor(((event.clientX - box.left) * scale) / CELL), row = Math.floor(((event.clientY - box.top) * scale) / CELL);
  const place = row * perRow + column;
  if (column >= 0 && column < perRow && place >= 0 && place < map.cells.length) goTo(place);
}

function swatch(name) {
  return drawn("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, drawn("rect", { width: 10, height: 10, class: name }));
}

function drawLegend() {
  const rows = map.kinds.map(({ kind, bytes: size }) => [
    kind === "data" ? element("span", { class: "swatches" }, ...[3, 2, 1, 0].map((quarter) => swatch(`cell-data-${quarter}`))) : swatch(colour([kind, 0])),
    nameOf(kind), bytes(size), percent(size, map.total_bytes)]);
  const told = `${bytes(map.total_bytes)}, ${bytes(map.cell_bytes)} a cell. Of data, four shades tell how much is valid: over 75, 50 and 25 %, and less.`;
  refill(parts.legend, element("p", {}, told), table("Kinds of cells",
    ["colour", "kind", numbers("size"), numbers("share")], rows));
}

function drawFreezes(freezes) {
  const columns = [numbers("freeze"), numbers("age"), numbers("time left"), numbers("flash kept"), numbers("memory kept")];
  refill(boxes.freezes, freezes.length === 0 ? "No moment is kept."
    : table("Moments that are kept", columns, freezes.map((freeze) => [
      number(freeze.id), duration(freeze.age_us), duration(freeze.left_us), bytes(freeze.flash_bytes), bytes(freeze.memory_bytes)])));
}

function drawTables({ stages, applications }) {
  const ran = stages.filter(({ tasks }) => tasks > 0), idle = stages.length - ran.length;
  const columns = ["stage", numbers("tasks"), numbers("bytes in"), numbers("bytes out"), numbers("time on units"), numbers("waits"), numbers("failures")];
  refill(boxes.stages, table(`Since the start${idle > 0 ? `; ${number(idle)} more did not run` : ""}`, columns, ran.map((stage) => [
    data(stage.name), number(stage.tasks), bytes(stage.bytes_in), bytes(stage.bytes_out), duration(stage.unit_us), number(stage.waits), number(stage.failures)])));
  const members = applications.length === 0 ? [] : Object.keys(applications[0]).filter((name) => name !== "name");
  const rows = applications.map((application) => [data(application.name), ...members.map((name) =>
    name.endsWith("_us") ? duration(application[name]) : name.endsWith("bytes") ? bytes(application[name]) : number(application[name]))]);
  refill(boxes.applications, applications.length === 0 ? "None has run a program."
    : table("Since the start", ["application", ...members.map((name) => numbers(name.replace(/_us$/, "").replaceAll("_", " ")))], rows));
}
