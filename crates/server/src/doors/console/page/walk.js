// The walk through a database of papers: a venue and its years, the most prominent papers, one of them, and others like
// it. Each step is computed at the drive and on the host, one after the other, and says what it took there.

import { askSides, costTable, rowsTable } from "./answers.js";
import { data, element, failure, notice, number } from "./elements.js";
import { graphOf } from "./graph.js";
import { keyspaces } from "./keyspaces.js";
import { named, quoted } from "./requests.js";

const NEEDED = ["papers", "references", "authors", "authorships"];
const MAKE = "tapetum generate papers --scale 0.01 --into ./tapetum-data";
const TOP = 10; // papers
const NODES_DRAWN = 120;
const OTHERS_SHOWN = 50;
const REFERENCES = named("references");

let root = null;
let done = null;
let isReady = false;
const steps = {};
let choice = null;

export function build() {
  isReady = false;
  root = element("div", { id: "walk-steps" });
  done = element("p", { role: "status", class: "unseen" });
  return [root, done];
}

/** Asks one side; the other is asked where a step compares them. */
async function select(sql) {
  const [answer] = await askSides("query", { sql }, ["drive"]);
  return answer;
}

function step(id, title) {
  steps[id] = element("div", {});
  const head = element("h2", { id: `${id}-title`, tabindex: -1 }, title);
  steps[`${id}-box`] = element("section", { id, class: "card step", "aria-labelledby": `${id}-title`, hidden: true }, head, steps[id]);
  return steps[`${id}-box`];
}

/** Runs a step: shows it, moves there, and puts its failure where its result would be. */
async function run(id, work) {
  const box = steps[`${id}-box`], shown = steps[id];
  box.hidden = false;
  shown.replaceChildren(notice("Computed at the drive, then on the host …"));
  const head = document.getElementById(`${id}-title`);
  head.focus({ preventScroll: true });
  head.scrollIntoView({ block: "start" });
  const started = (shown.started = Symbol(id));
  done.textContent = "";
  box.setAttribute("aria-busy", "true");
  const children = await work().catch((error) => [failure(error)]);
  // A later run of this step has the box.
  if (shown.started !== started) return;
  shown.replaceChildren(...children);
  box.removeAttribute("aria-busy");
  done.textContent = `${head.textContent}: done`;
}

export async function refresh() {
  if (isReady) return;
  const have = new Set((await keyspaces()).filter(({ format }) => format !== null).map(({ name }) => name));
  const missing = NEEDED.filter((name) => !have.has(name));
  if (missing.length > 0) {
    root.replaceChildren(
      notice(`The walk goes through a database of papers, and needs its keyspaces. Missing, or not yours to read: ${missing.join(", ")}. This makes them:`),
      element("pre", {}, element("code", {}, MAKE)), element("button", { type: "button", class: "main", click: () => refresh().catch(tell) }, "Look again"));
    return;
  }
  isReady = true;
  root.replaceChildren(step("choose", "1. A venue and its years"), step("prominent", "2. The most prominent papers"),
    step("paper", "3. One paper"), step("others", "4. Others like it"));
  steps["choose-box"].hidden = false;
  try {
    await showVenues();
  } catch (error) {
    isReady = false;
    throw error;
  }
}

function tell(error) {
  root.replaceChildren(failure(error));
}

function option(value, text, selected = false) {
  return element("option", { value, selected }, text);
}

async function showVenues() {
  const venues = await select("select venue, count(*) as papers from papers group by venue order by papers desc limit 500");
  const venue = element("select", { id: "venue", change: () => showYears().catch(tell) },
    ...venues.rows.map(([name, papers]) => option(name, `${name} (${number(papers)})`)));
  choice = { venue, from: element("select", { id: "year-from" }), to: element("select", { id: "year-to" }), costs: element("div", {}), venues: venues.report };
  const form = element("form", { class: "row", submit: (event) => {
    event.preventDefault();
    run("prominent", showProminent);
  } }, labelled("Venue", venue), labelled("from", choice.from), labelled("to", choice.to),
  element("button", { type: "submit", class: "main" }, "Find the most prominent papers"));
  steps.choose.replaceChildren(form, choice.costs);
  await showYears();
}

function labelled(text, control) {
  return element("span", { class: "field" }, element("label", { for: control.id }, text), control);
}

async function showYears() {
  const venue = choice.venue.value;
  const years = await select(`select year, count(*) as papers from papers where venue = ${quoted(venue)} group by year order by year`);
  // Another venue may have been chosen meanwhile.
  if (venue !== choice.venue.value) return;
  const options = () => years.rows.map(([year, papers]) => option(year, `${year} (${number(papers)})`));
  choice.from.replaceChildren(...options());
  choice.to.replaceChildren(...options());
  const fullest = years.rows.reduce((most, row) => (row[1] > most[1] ? row : most), years.rows[0] ?? [null, 0]);
  choice.from.value = choice.to.value = fullest[0];
  choice.costs.replaceChildren(costTable([{ name: "venues", reports: [choice.venues] }, { name: "years", reports: [years.report] }]));
}

function condition() {
  const [from, to] = [Number(choice.from.value), Number(choice.to.value)].toSorted((one, other) => one - other);
  return `venue = ${quoted(choice.venue.value)} and year ${from === to ? `= ${from}` : `between ${from} and ${to}`}`;
}

async function showProminent() {
  const where = condition();
  const answers = await askSides("betweenness", { keyspace: "references", where, top: TOP });
  const [answer] = answers, top = answer.top.filter(([, betweenness]) => betweenness > 0), ids = top.map(([id]) => Number(id));
  if (ids.length === 0) return [notice("There no paper lies on a path of references between two others. Choose more years, or another venue.")];
  const list = ids.join(", ");
  const references = await select(`select citing, cited from ${REFERENCES} where ${where} and (citing in (${list}) or cited in (${list})) limit 1000`);
  const titles = await select(`select id, venue, year, title from papers where id in (${drawnIds(ids, references.rows).join(", ")})`);
  const papers = new Map(titles.rows.map(([id, venue, year, title]) => [id, { id, venue, year, title, rank: ids.indexOf(id) + 1 || null }]));
  const ranked = [...papers.values()].toSorted((one, other) => (one.rank ?? Infinity) - (other.rank ?? Infinity));
  const width = Math.max(560, Math.min(1100, steps.prominent.clientWidth));
  return [
    costTable([{ name: "betweenness", reports: answers.map(({ report }) => report) }, { name: "references", reports: [references.report] },
      { name: "titles", reports: [titles.report] }]),
    element("p", {}, `${number(answer.nodes)} papers, ${number(answer.edges)} references; paths from ${answer.sources === answer.nodes ? "all" : number(answer.sources)} papers.`),
    prominentTable(top, papers),
    ranked.length > 0 ? graphOf(ranked, references.rows, width, ({ id }) => openPaper(id)) : ""];
}

function prominentTable(top, papers) {
  const columns = [["rank", "int"], ["id", "int"], ["title", "text"], ["venue", "text"], ["year", "int"], ["betweenness", "float"]];
  const rows = top.map(([id, betweenness], place) => {
    const { title = `paper ${id}`, venue = null, year = null } = papers.get(Number(id)) ?? {};
    return [place + 1, Number(id), title, venue, year, Math.round(betweenness * 10) / 10];
  });
  return rowsTable({ columns: columns.map(([name, type]) => ({ name, type })), rows, is_cut: false },
    "Papers through which most shortest paths of references lead", { title: opens(1) });
}

/** The prominent papers, and the neighbours that have most references with them. */
function drawnIds(ids, pairs) {
  const degrees = new Map();
  for (const id of pairs.flat()) degrees.set(id, (degrees.get(id) ?? 0) + 1);
  const neighbours = [...degrees.keys()].filter((id) => !ids.includes(id)).toSorted((one, other) => degrees.get(other) - degrees.get(one) || one - other);
  return [...ids, ...neighbours.slice(0, NODES_DRAWN - ids.length)];
}

/** A cell that opens the paper whose id stands in this column of its row. */
function opens(idColumn) {
  return (title, _, row) => element("button", { type: "button", class: "link", click: () => openPaper(Number(row[idColumn])) }, data(title));
}

function openPaper(id) {
  steps["others-box"].hidden = true;
  return run("paper", () => showPaper(id));
}

async function showPaper(id) {
  const papers = await askSides("get", { keyspace: "papers", key: String(id), select: "*" });
  const [answer] = papers;
  if (answer.rows.length === 0) return [notice(`Paper ${id} is not in the store: only references to it are.`)];
  const paper = Object.fromEntries(answer.columns.map(({ name }, place) => [name, answer.rows[0][place]]));
  const written = await askSides("query", { sql: `select place, author from authorships where paper = ${id} order by place limit 100` });
  const ids = written[0].rows.map(([, author]) => Number(author));
  const names = ids.length === 0 ? null : await select(`select id, name from authors where id in (${ids.join(", ")})`);
  const nameOf = new Map((names?.rows ?? []).map(([author, name]) => [Number(author), name]));
  const authors = ids.map((author) => ({ author, name: nameOf.get(author) ?? `author ${author}` }));
  return [
    element("dl", {}, ...[["title", paper.title], ["venue", paper.venue], ["year", paper.year], ["authors", authors.map(({ name }) => name).join(", ")],
      ["id", id]].flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, data(value))])),
    element("div", { class: "row" }, ...othersButtons(id, paper, authors)),
    costTable([{ name: "get", reports: papers.map(({ report }) => report) }, { name: "authorships", reports: written.map(({ report }) => report) },
      ...(names === null ? [] : [{ name: "authors", reports: [names.report] }])])];
}

/** Ways on from a paper: others of its venue, its year, and each of its authors. */
function othersButtons(id, { venue, year }, authors) {
  const condition = (where) => async () => ({ where: `${where} and id <> ${id}`, parts: [] });
  const ways = [[venue, "Others of ", condition(`venue = ${quoted(venue)}`)], [String(year), "Others of ", condition(`year = ${year}`)],
    ...authors.map(({ author, name }) => [name, "Others by ", () => papersBy(author, id)])];
  return ways.map(([what, words, find]) =>
    element("button", { type: "button", click: () => run("others", () => showOthers(what, find)) }, words, data(what)));
}

async function papersBy(author, without) {
  const written = await askSides("query", { sql: `select paper from authorships where author = ${author} and paper <> ${without} limit 200` });
  const ids = written[0].rows.map(([paper]) => Number(paper));
  return { where: ids.length > 0 ? `id in (${ids.join(", ")})` : null, parts: [{ name: "authorships", reports: written.map(({ report }) => report) }] };
}

async function showOthers(what, find) {
  const { where, parts } = await find();
  if (where === null) return [element("p", {}, "There is no other paper: ", data(what)), costTable(parts)];
  const answers = await askSides("query", { sql: `select id, year, venue, title from papers where ${where} order by year desc limit ${OTHERS_SHOWN}` });
  const [answer] = answers, isCut = answer.rows.length === OTHERS_SHOWN;
  return [rowsTable({ ...answer, is_cut: isCut }, what, { title: opens(0) }),
    costTable([...parts, { name: "papers", reports: answers.map(({ report }) => report) }])];
}
