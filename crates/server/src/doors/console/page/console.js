// The console: the session, the views, and the clock by which they are drawn anew.
//
// While the page can be seen it asks once a second, one request at a time. Hidden, it asks nothing. While the server is
// away it asks less and less often, and says so.

import { data, element, failure } from "./elements.js";
import * as drive from "./drive.js";
import * as keyspaces from "./keyspaces.js";
import * as overview from "./overview.js";
import * as query from "./query.js";
import { Refused, ask, logIn, whenLoggedOut } from "./requests.js";
import * as walk from "./walk.js";

const TICK_MS = 1000;
const LONGEST_PAUSE_MS = 30_000;

// Views by the name in the address. `every`: ticks between what is asked for this view beside the figures.
const VIEWS = {
  overview: { title: "Overview", module: overview, needsStore: true, every: 2, refresh: (isDue) => overview.refresh(isDue) },
  drive: { title: "Drive", module: drive, needsStore: true, every: 5, refresh: (isDue) => drive.refresh(figures, isDue) },
  keyspaces: { title: "Keyspaces", module: keyspaces, every: 3, refresh: (isDue) => isDue && keyspaces.refresh(writtenBytes()) },
  query: { title: "Query", module: query, every: 30, refresh: (isDue) => isDue && query.refresh() },
  walk: { title: "Walk", module: walk, every: 30, refresh: (isDue) => isDue && walk.refresh() },
};

const at = (id) => document.getElementById(id);
let session = null;
let user = null; // of the last session
let figures = null;
let shown = null;
let ticks = 0;
let pauseMs = TICK_MS;
let timer = null;
let isTicking = false;
let loggingIn = null;

function writtenBytes() {
  return new Map((figures?.keyspaces ?? []).map(({ name, written_bytes: written }) => [name, written]));
}

function buildViews() {
  for (const [name, view] of Object.entries(VIEWS)) {
    view.error = element("div", {});
    view.heading = element("h1", { tabindex: -1, id: `${name}-heading` }, view.title);
    view.section = element("section", { id: `view-${name}`, "aria-labelledby": `${name}-heading`, hidden: true }, view.heading, view.error, ...view.module.build());
    view.link = element("a", { href: `#${name}` }, view.title);
    at("content").append(view.section);
    at("views").append(view.link);
  }
}

function mayShow(view) {
  return session !== null && (!view.needsStore || session.may_read_store);
}

/** Shows the view that the address names, or the first one that this user may see. */
function showView(withFocus) {
  const name = location.hash.slice(1), wanted = Object.hasOwn(VIEWS, name) ? VIEWS[name] : null;
  shown = wanted && mayShow(wanted) ? wanted : Object.values(VIEWS).find(mayShow) ?? null;
  for (const view of Object.values(VIEWS)) {
    view.section.hidden = view !== shown;
    view.link.hidden = !mayShow(view);
    if (view === shown) view.link.setAttribute("aria-current", "page");
    else view.link.removeAttribute("aria-current");
  }
  document.title = shown ? `${shown.title} – Tapetum` : "Tapetum";
  ticks = 0;
  if (withFocus && shown) shown.heading.focus();
  tick();
}

function enter(taken) {
  session = taken;
  user = taken.user;
  at("version").textContent = taken.version;
  at("who").replaceChildren(...(taken.user === null ? [] : ["as ", data(taken.user)]));
  at("log-out").hidden = taken.user === null;
  at("login").hidden = true;
  at("views").hidden = false;
  showView(false);
}

/** Takes a session without a user, or has the reader log in. */
async function takeSession() {
  try {
    enter(await logIn());
  } catch (error) {
    if (!error.isLogin) throw error;
    askForLogin();
  }
}

async function regain() {
  await takeSession().catch(() => {});
  return session !== null;
}

function askForLogin() {
  session = null;
  shown = null;
  for (const view of Object.values(VIEWS)) view.section.hidden = true;
  at("views").hidden = true;
  at("log-out").hidden = true;
  at("who").replaceChildren();
  at("login-error").textContent = "";
  at("login").hidden = false;
  document.title = "Log in – Tapetum";
  at("login-user").focus();
}

async function submitLogin(event) {
  event.preventDefault();
  const form = at("login-form"), button = form.querySelector("button");
  if (button.disabled) return;
  button.disabled = true;
  at("login-error").textContent = "";
  try {
    const taken = await logIn({ user: form.elements.user.value, password: form.elements.password.value });
    form.reset();
    // What another user was shown goes, with all that was asked for him: this one logs in at a page without it.
    if (user !== null && taken.user !== user) return location.reload();
    enter(taken);
    shown?.heading.focus();
  } catch (error) {
    at("login-error").textContent = error.message;
    form.elements.password.select();
  } finally {
    button.disabled = false;
  }
}

function sayState(error) {
  const isGood = error === null;
  document.body.classList.toggle("away", !isGood);
  const text = isGood ? "" : `${error.message} Asked again in ${Math.round(pauseMs / 1000)} s.`;
  if (at("state").textContent !== text) at("state").textContent = text;
}

function schedule() {
  clearTimeout(timer);
  timer = document.hidden || (session === null && !at("login").hidden) ? null : setTimeout(tick, pauseMs);
}

/** One turn: the figures, and what the view shows. Turns do not overlap. */
async function tick() {
  if (isTicking || document.hidden) return;
  isTicking = true;
  try {
    await turn();
    pauseMs = TICK_MS;
    sayState(null);
  } catch (error) {
    if (error instanceof Refused && error.isAway) {
      pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2);
      sayState(error);
    } else if (session !== null && shown) {
      showError(shown, error);
    } else {
      pauseMs = Math.min(LONGEST_PAUSE_MS, pauseMs * 2);
      sayState(error);
    }
  } finally {
    isTicking = false;
    schedule();
  }
}

/** Shows why a view cannot be drawn. The same reason again is not said again. */
function showError(view, error) {
  if (view.why !== error.message) view.error.replaceChildren(failure(error));
  view.why = error.message;
}

/** Takes the newest figures; a user who may see them no more goes on with the other views. */
async function takeFigures() {
  try {
    figures = await ask("figures");
    overview.keep(figures);
  } catch (error) {
    if (error.status !== 403) throw error;
    session.may_read_store = false;
    showView(false);
  }
}

async function turn() {
  if (session === null && at("login").hidden) await takeSession();
  if (session === null) return;
  if (session.may_read_store) await takeFigures();
  const view = shown, isDue = ticks % view.every === 0;
  ticks += 1;
  await view.refresh(isDue);
  if (isDue) {
    view.error.replaceChildren();
    view.why = null;
  }
}

whenLoggedOut(() => (loggingIn ??= regain().finally(() => { loggingIn = null; })));
buildViews();
at("login-form").addEventListener("submit", submitLogin);
// A page anew: nothing that was shown, and nothing that is on its way, is left for the next user.
at("log-out").addEventListener("click", () => location.reload());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("content").focus();
});
addEventListener("hashchange", () => { if (session !== null) showView(true); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
tick();
