/** What an answer of Anthropic's messages adds: of its events, and of a whole message. Knows no network and no page. */

import { deltaWith } from "./delta.js";

/**
 * @typedef {import("./delta.js").Delta} Delta
 * @typedef {import("./deltas.js").Usage} Usage
 */

const EVENTS = ["message_start", "content_block_start", "content_block_delta", "message_delta"];

/** @param {any} piece */
export function isOfMessage(piece) {
  return EVENTS.includes(piece?.type) || (piece?.type === "message" && Array.isArray(piece.content));
}

/**
 * @param {any} piece
 * @returns {Delta[]}
 */
export function messageDeltas(piece) {
  switch (piece.type) {
    case "content_block_start":
      return [deltaWith(blockOf(piece.content_block, piece.index, false))];
    case "content_block_delta":
      return [deltaWith(deltaOf(piece.delta, piece.index))];
    case "message_delta":
      return [deltaWith({ finish: piece.delta.stop_reason })];
    case "message":
      return [...piece.content.map((block, index) => deltaWith(blockOf(block, index, true))), deltaWith({ finish: piece.stop_reason })];
    default:
      return [];
  }
}

/**
 * @param {any} piece
 * @returns {Usage | null} of the last event, or of a whole message
 */
export function messageUsage({ type, usage }) {
  if (type === "message_start" || !usage) return null;
  const cached = usage.cache_read_input_tokens ?? 0;
  const prompt = (usage.input_tokens ?? 0) + cached + (usage.cache_creation_input_tokens ?? 0);
  return { prompt, completion: usage.output_tokens, cached };
}

/** A call's input comes with its block only if the message is whole. */
function blockOf(block, index, isWhole) {
  if (block.type === "text") return { text: block.text };
  if (block.type === "thinking") return { reasoning: block.thinking };
  if (block.type !== "tool_use") return {};
  return { calls: [{ index, id: block.id, name: block.name, arguments: isWhole ? JSON.stringify(block.input) : "" }] };
}

function deltaOf(delta, index) {
  if (delta.type === "text_delta") return { text: delta.text };
  if (delta.type === "thinking_delta") return { reasoning: delta.thinking };
  if (delta.type !== "input_json_delta") return {};
  return { calls: [{ index, id: "", name: "", arguments: delta.partial_json }] };
}
