/**
 * What an answer adds, whatever its protocol: text, thoughts, calls of tools, tokens, the end, the usage.
 *
 * One function reads pieces of a stream and whole answers alike, because a whole answer is one large piece.
 * Knows no network and no page.
 */

import { deltaWith, listedTokens } from "./delta.js";
import { isOfMessage, messageDeltas, messageUsage } from "./message_events.js";
import { isOfResponse, responseDeltas, responseProblem, responseUsage } from "./response_events.js";

/**
 * @typedef {import("./delta.js").Delta} Delta
 * @typedef {{prompt: number | null, completion: number, cached: number}} Usage
 * @typedef {{message: string, kind: string, field: string}} Problem
 */

/**
 * The deltas of one event or one whole answer.
 *
 * @param {any} piece
 * @returns {Delta[]}
 */
export function deltasOf(piece) {
  if (Array.isArray(piece?.choices)) return piece.choices.map(ofChoice);
  if (piece?.text_output !== undefined) return ofTensors(piece);
  if (isOfMessage(piece)) return messageDeltas(piece);
  return isOfResponse(piece) ? responseDeltas(piece) : [];
}

/**
 * The usage that a piece tells, if it tells any.
 *
 * @param {any} piece
 * @param {boolean} [isWhole] whether it is a whole answer, not an event of a stream
 * @returns {Usage | null}
 */
export function usageOf(piece, isWhole = false) {
  const { usage, details } = piece ?? {};
  if (isOfMessage(piece)) return messageUsage(piece);
  if (isOfResponse(piece)) return responseUsage(piece);
  if (usage?.completion_tokens !== undefined) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    return { prompt: usage.prompt_tokens ?? null, completion: usage.completion_tokens, cached };
  }
  if (details?.generated_tokens !== undefined) return { prompt: null, completion: details.generated_tokens, cached: 0 };
  // In a stream this tensor is the length of one piece.
  if (!isWhole || piece?.sequence_length === undefined) return null;
  const lengths = [piece.sequence_length].flat(Infinity);
  return { prompt: null, completion: lengths.reduce((sum, each) => sum + each, 0), cached: 0 };
}

/**
 * The error that a body or an event tells, in the words of its protocol; null if it tells none.
 *
 * @param {any} body
 * @returns {Problem | null}
 */
export function problemOf(body) {
  if (body === null || typeof body !== "object") return null;
  if (isOfResponse(body)) return responseProblem(body);
  if (typeof body.error === "string") {
    return { message: body.error, kind: body.error_type ?? "", field: "" };
  }
  if (body.error && typeof body.error === "object") {
    const { message, type, code, param } = body.error;
    return { message: String(message ?? JSON.stringify(body.error)), kind: String(type ?? code ?? ""), field: param ?? "" };
  }
  if (body.error_code !== undefined) {
    return { message: String(body.message ?? ""), kind: String(body.error_code), field: "" };
  }
  return null;
}

function ofChoice(choice) {
  const said = choice.delta ?? choice.message ?? {};
  const calls = said.tool_calls ?? (said.function_call ? [{ index: 0, function: said.function_call }] : []);
  const parts = Array.isArray(said.content) ? said.content : [];
  return {
    choice: choice.index ?? 0,
    text: Array.isArray(said.content) ? textOf(parts) : (said.content ?? choice.text ?? ""),
    reasoning: said.reasoning_content ?? said.reasoning ?? textOf(parts.flatMap((part) => part.summary ?? [])),
    calls: (calls ?? []).map((call, position) => ({
      index: call.index ?? position,
      id: call.id ?? "",
      name: call.function?.name ?? "",
      arguments: asText(call.function?.arguments),
    })),
    tokens: tokensOf(choice.logprobs),
    finish: choice.finish_reason ?? null,
  };
}

function ofTensors(piece) {
  const texts = [piece.text_output].flat();
  const logprob = piece.output_log_probs;
  return texts.map((text, position) =>
    deltaWith({
      choice: piece.sequence_index ?? position,
      text,
      // One event is one token; of a whole answer the texts of single tokens are not told.
      tokens: typeof logprob === "number" ? [{ text, logprob, alternatives: [] }] : [],
      finish: piece.details?.finish_reason ?? null,
    }),
  );
}

/** Log-probabilities in the form of chats, or in the older one of completions. */
function tokensOf(logprobs) {
  if (Array.isArray(logprobs?.content)) return listedTokens(logprobs.content);
  if (Array.isArray(logprobs?.tokens)) {
    return logprobs.tokens.map((text, position) => ({
      text,
      logprob: logprobs.token_logprobs?.[position] ?? null,
      alternatives: Object.entries(logprobs.top_logprobs?.[position] ?? {}).map(([other, logprob]) => ({
        text: other,
        logprob,
      })),
    }));
  }
  return [];
}

/** The texts of parts of a content; others have none. */
function textOf(parts) {
  return parts.map((part) => part.text ?? "").join("");
}

function asText(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
