/** One request: sent through the console, read as it arrives, stopped at any time. Knows no page. */

import { deltasOf, problemOf, usageOf } from "./deltas.js";
import { toJson } from "./json_text.js";
import { eventsOf } from "./sse.js";

/**
 * @typedef {{path: string, dialect: string, entity: string, body: any, csrf: string}} Request
 * @typedef {{entity: string, id: string, ignored: string}} Facts
 */

/** What the server refuses or breaks, in its own words. */
export class Refused extends Error {
  /**
   * @param {import("./deltas.js").Problem} problem
   * @param {number} status 0 within a stream
   * @param {string} retryAfter seconds, or nothing
   */
  constructor(problem, status, retryAfter = "") {
    super(problem.message);
    this.kind = problem.kind;
    this.field = problem.field;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/**
 * Sends a request and tells what arrives.
 *
 * @param {Request} request
 * @param {{facts: (facts: Facts) => void, arrived: () => void, delta: (delta: import("./delta.js").Delta) => void,
 *   usage: (usage: import("./deltas.js").Usage) => void}} told is called in the order of arrival; `arrived` before the deltas that came together
 * @param {AbortSignal} signal ends the request, and the server then frees what it holds
 * @throws {Refused} for an error of the server; DOMException AbortError when stopped
 */
export async function ask(request, told, signal) {
  const headers = {
    "content-type": "application/json",
    "x-api-dialect": request.dialect,
    "x-csrf-token": request.csrf,
  };
  if (request.entity) headers["x-served-entity"] = request.entity;
  const url = `/console/api${request.path}`;
  const answer = await fetch(url, { method: "POST", headers, body: toJson(request.body), signal });
  if (!answer.ok) throw await refusal(answer);
  told.facts({
    entity: answer.headers.get("served-model-name") ?? "",
    id: answer.headers.get("x-request-id") ?? "",
    ignored: answer.headers.get("x-ignored-fields") ?? "",
  });
  if (!answer.headers.get("content-type")?.startsWith("text/event-stream")) {
    tell(await answer.json(), told, true);
    return;
  }
  for await (const event of eventsOf(answer.body, told.arrived)) {
    if (event.data === "[DONE]") return;
    tell(parsed(event.data), told, false);
  }
}

function tell(piece, told, isWhole) {
  const problem = problemOf(piece);
  if (problem) throw new Refused(problem, 0);
  for (const delta of deltasOf(piece)) told.delta(delta);
  const usage = usageOf(piece, isWhole);
  if (usage) told.usage(usage);
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Refused({ message: `The stream has an event that is not JSON: ${data.slice(0, 200)}`, kind: "", field: "" }, 0);
  }
}

async function refusal(answer) {
  const text = await answer.text();
  let problem = null;
  try {
    problem = problemOf(JSON.parse(text));
  } catch {
    // Not every error is JSON, such as one of a proxy.
  }
  problem ??= { message: text.slice(0, 2000) || answer.statusText, kind: "", field: "" };
  return new Refused(problem, answer.status, answer.headers.get("retry-after") ?? "");
}
