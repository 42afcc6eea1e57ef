/** What an answer of OpenAI's responses adds: of its events, and of a whole response. Knows no network and no page. */

import { deltaWith, listedTokens } from "./delta.js";

/**
 * @typedef {import("./delta.js").Delta} Delta
 * @typedef {import("./deltas.js").Usage} Usage
 * @typedef {import("./deltas.js").Problem} Problem
 */

const ENDS = ["response.completed", "response.incomplete", "response.failed"];

/** @param {any} piece */
export function isOfResponse(piece) {
  return piece?.object === "response" || String(piece?.type ?? "").startsWith("response.");
}

/**
 * @param {any} piece
 * @returns {Delta[]}
 */
export function responseDeltas(piece) {
  const { type, output_index: index, delta } = piece;
  if (piece.object === "response") return wholeDeltas(piece);
  if (ENDS.includes(type)) return [deltaWith({ finish: finishOf(piece.response) })];
  if (type === "response.output_text.delta") return [deltaWith({ text: delta, tokens: listedTokens(piece.logprobs) })];
  if (type === "response.reasoning_text.delta" || type === "response.reasoning_summary_text.delta") {
    return [deltaWith({ reasoning: delta })];
  }
  if (type === "response.output_item.added" && piece.item.type === "function_call") return [deltaWith(callOf(piece.item, index))];
  if (type === "response.function_call_arguments.delta") {
    return [deltaWith({ calls: [{ index, id: "", name: "", arguments: delta }] })];
  }
  return [];
}

/**
 * @param {any} piece
 * @returns {Usage | null}
 */
export function responseUsage(piece) {
  const { usage } = piece.response ?? piece;
  if (!usage) return null;
  return { prompt: usage.input_tokens, completion: usage.output_tokens, cached: usage.input_tokens_details?.cached_tokens ?? 0 };
}

/**
 * @param {any} piece
 * @returns {Problem | null}
 */
export function responseProblem(piece) {
  const { error } = piece.response ?? piece;
  return error ? { message: String(error.message ?? ""), kind: String(error.code ?? ""), field: "" } : null;
}

/** A further text, or further thoughts, are a further choice: only OpenVINO Model Server has several. */
function wholeDeltas(response) {
  const deltas = [];
  let choice = 0;
  let hasSaid = false; // whether the choice has a text or a call already
  response.output.forEach((item, index) => {
    const isCall = item.type === "function_call";
    if (hasSaid && !isCall) {
      choice += 1;
      hasSaid = false;
    }
    hasSaid ||= item.type !== "reasoning";
    deltas.push(deltaWith({ choice, ...(isCall ? callOf(item, index) : saidBy(item)) }));
  });
  deltas.push(deltaWith({ choice, finish: finishOf(response) }));
  return deltas;
}

function saidBy(item) {
  const parts = [...(item.summary ?? []), ...(item.content ?? [])];
  const text = parts.map((part) => part.text ?? "").join("");
  if (item.type === "reasoning") return { reasoning: text };
  return item.type === "message" ? { text, tokens: parts.flatMap((part) => listedTokens(part.logprobs)) } : {};
}

function callOf(item, index) {
  return { calls: [{ index, id: item.call_id, name: item.name, arguments: item.arguments }] };
}

function finishOf({ status, incomplete_details: details }) {
  return details?.reason ? `${status}: ${details.reason}` : status;
}
