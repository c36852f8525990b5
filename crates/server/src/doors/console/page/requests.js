// Requests to the server that served this page, the session, and SQL's quotes.
//
// The token lives in memory alone: no other page and no later visitor of this browser finds it. A reload asks for
// the password again, where there are users.

let token = null;
let regain = async () => false;

/** A request that the server refused, or did not answer (status 0). The message is for the reader. */
export class Refused extends Error {
  constructor(status, message, isLogin = false) {
    super(message);
    this.status = status;
    this.isLogin = isLogin;
  }

  /** The server may answer later. */
  get isAway() {
    return this.status === 0 || this.status === 503;
  }
}

async function post(name, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  let reply, answer;
  try {
    reply = await fetch(`api/${name}`, { method: "POST", headers, body: JSON.stringify(body), signal, cache: "no-store" });
    answer = await reply.json();
  } catch (error) {
    if (error.name === "AbortError") throw new Refused(-1, "Stopped.");
    throw new Refused(reply?.ok === false ? reply.status : 0, "The server does not answer.");
  }
  if (!reply.ok) throw new Refused(reply.status, String(answer.error ?? `The server says ${reply.status}.`), answer.log_in === true);
  return answer;
}

/** Asks the server. When it no longer knows the token, the reader logs in again first. */
export async function ask(name, body = {}, signal = undefined) {
  try {
    return await post(name, body, signal);
  } catch (error) {
    if (error.status !== 401) throw error;
    token = null;
    if (!(await regain())) throw error;
    return post(name, body, signal);
  }
}

/** Takes a session: without a user, where the server has none. */
export async function logIn(credentials = {}) {
  token = null;
  const session = await post("login", credentials);
  token = session.token;
  return session;
}

/** `handler` takes a new session when the old one ends, and says whether it could. */
export function whenLoggedOut(handler) {
  regain = handler;
}

/** A text as SQL writes it. */
export function quoted(text) {
  return `'${String(text).replaceAll("'", "''")}'`;
}

const CLAUSES = new Set(["all", "and", "as", "asc", "between", "by", "case", "desc", "distinct", "false", "fetch", "from", "group", "having", "in",
  "is", "like", "limit", "not", "null", "offset", "on", "or", "order", "references", "select", "table", "true", "union", "values", "where", "with"]);

/** The name of a keyspace or field as SQL writes it. */
export function named(name) {
  return /^[a-z_][a-z0-9_]*$/i.test(name) && !CLAUSES.has(name.toLowerCase()) ? name : `"${name.replaceAll('"', '""')}"`;
}
