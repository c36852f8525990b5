// A drawing of papers and the references among them: years run from left to right, and papers repel each other.

import { drawn, element, number } from "./elements.js";

const ROUNDS = 200;
const RADIUS = 7, RADIUS_RANKED = 12; // pixels
const EDGE = 30; // pixels that are kept free

/** Moves papers apart, keeps those that refer to each other near, and each near its year. Sets x and y of the nodes. */
function arrange(nodes, edges, width, height) {
  const years = nodes.map(({ year }) => year), first = Math.min(...years), last = Math.max(...years);
  const distance = Math.sqrt((width * height) / nodes.length) * 0.8;
  // Half by the year and half by the place among all: a year of many papers has more room.
  [...nodes].sort((one, other) => one.year - other.year).forEach((node, place) => {
    const byPlace = place / Math.max(1, nodes.length - 1), byYear = first === last ? byPlace : (node.year - first) / (last - first);
    node.x = node.home = EDGE + (0.5 * byYear + 0.5 * byPlace) * (width - 2 * EDGE);
    // The golden ratio spreads neighbours over the height, the same at each drawing.
    node.y = EDGE + ((place * 0.618034) % 1) * (height - 2 * EDGE);
  });
  for (let round = 0; round < ROUNDS; round += 1) {
    move(nodes, edges, distance, 1 + distance * 0.3 * (1 - round / ROUNDS));
    for (const node of nodes) {
      node.x = Math.max(EDGE / 2, Math.min(width - EDGE / 2, node.x + (node.home - node.x) * 0.1));
      node.y = Math.max(EDGE / 2, Math.min(height - EDGE, node.y + (height / 2 - node.y) * 0.008));
    }
  }
}

function push(one, other, x, y) {
  one.force[0] += x;
  one.force[1] += y;
  other.force[0] -= x;
  other.force[1] -= y;
}

/** One round: no paper moves farther than `reach`. */
function move(nodes, edges, distance, reach) {
  for (const node of nodes) node.force = [0, 0];
  nodes.forEach((one, nth) => {
    for (const other of nodes.slice(nth + 1)) {
      const x = one.x - other.x, y = one.y - other.y, square = x * x + y * y + 0.01;
      const strength = (one.rank && other.rank ? 3 : 1) * (distance * distance) / square / 10;
      if (square < 9 * distance * distance) push(one, other, x * strength, y * strength);
    }
  });
  for (const [one, other] of edges) push(one, other, (other.x - one.x) * 0.004, (other.y - one.y) * 0.004);
  for (const node of nodes) {
    const length = Math.hypot(...node.force), share = length > reach ? reach / length : 1;
    node.x += node.force[0] * share;
    node.y += node.force[1] * share;
  }
}

function describe(node, degree) {
  const rank = node.rank ? `number ${node.rank} by betweenness: ` : "";
  return `${rank}${node.title}, ${node.venue} ${node.year}, ${number(degree)} reference${degree === 1 ? "" : "s"} shown`;
}

/**
 * The drawing. Nodes are {id, title, venue, year, rank | null}, edges pairs of ids, from the paper that refers to the other.
 * One node can be reached by Tab, the others from it by arrow keys; Enter calls `open` with the node.
 */
export function graphOf(nodes, pairs, width, open) {
  const height = Math.round(Math.max(320, width * 0.55)), byId = new Map(nodes.map((node) => [node.id, node]));
  const edges = pairs.map(([from, to]) => [byId.get(from), byId.get(to)]).filter(([from, to]) => from && to && from !== to);
  arrange(nodes, edges, width, height);
  const told = element("p", { class: "told", "aria-hidden": "true" }, "Arrow keys go from paper to paper, Enter opens one.");
  const lines = edges.map(([from, to]) => drawn("path", { class: "edge", d: edgePath(from, to) }));
  const near = new Map(nodes.map((node) => [node, edges.flatMap((edge, place) => (edge.includes(node) ? [lines[place]] : []))]));
  const marks = nodes.map((node) => {
    const text = describe(node, near.get(node).length);
    const light = () => {
      lines.forEach((line) => line.classList.toggle("lit", near.get(node).includes(line)));
      told.textContent = text;
    };
    const place = `translate(${node.x.toFixed(1)} ${node.y.toFixed(1)})`;
    return drawn("g", { class: node.rank ? "node ranked" : "node", role: "button", tabindex: node === nodes[0] ? 0 : -1, "aria-label": text,
      transform: place, focus: light, pointerenter: light, click: () => open(node), keydown: (event) => onKey(event, node) },
    drawn("circle", { r: node.rank ? RADIUS_RANKED : RADIUS }), node.rank ? drawn("text", { "text-anchor": "middle", y: 4 }, String(node.rank)) : null);
  });
  function onKey(event, node) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(node);
    } else if (event.key in DIRECTIONS) {
      event.preventDefault();
      const next = nearest(nodes, node, DIRECTIONS[event.key]);
      if (!next) return;
      marks.forEach((mark, place) => mark.setAttribute("tabindex", nodes[place] === next ? 0 : -1));
      marks[nodes.indexOf(next)].focus();
    }
  }
  const label = `${number(nodes.length)} papers and ${number(edges.length)} references among them, years from left to right`;
  return element("figure", { class: "graph" },
    drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label }, ...lines, ...marks, ...yearNames(nodes, width, height)),
    told);
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The nearest node in a direction; nodes beside it count as farther. */
function nearest(nodes, from, [right, down]) {
  let best = null, least = Infinity;
  for (const node of nodes) {
    const ahead = (node.x - from.x) * right + (node.y - from.y) * down, aside = Math.abs((node.x - from.x) * down) + Math.abs((node.y - from.y) * right);
    if (node !== from && ahead > 0.5 && ahead + 2 * aside < least) [best, least] = [node, ahead + 2 * aside];
  }
  return best;
}

/** A line with an arrow's head before the paper that is referred to. */
function edgePath(from, to) {
  const x = to.x - from.x, y = to.y - from.y, length = Math.hypot(x, y) || 1, [ux, uy] = [x / length, y / length];
  const end = [to.x - ux * ((to.rank ? RADIUS_RANKED : RADIUS) + 1), to.y - uy * ((to.rank ? RADIUS_RANKED : RADIUS) + 1)];
  const head = (side) => `${(end[0] - ux * 6 + uy * 3 * side).toFixed(1)} ${(end[1] - uy * 6 - ux * 3 * side).toFixed(1)}`;
  return `M${from.x.toFixed(1)} ${from.y.toFixed(1)}L${end[0].toFixed(1)} ${end[1].toFixed(1)}M${head(1)}L${end[0].toFixed(1)} ${end[1].toFixed(1)}L${head(-1)}`;
}

function yearNames(nodes, width, height) {
  const years = nodes.map(({ year }) => year), first = Math.min(...years), last = Math.max(...years);
  const ends = first === last ? [[first, width / 2, "middle"]] : [[first, 30, "middle"], [last, width - 30, "middle"]];
  return ends.map(([year, x, anchor]) => drawn("text", { x, y: height - 8, "text-anchor": anchor, class: "year" }, String(year)));
}
