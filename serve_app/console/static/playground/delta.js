/** One addition to an answer, and tokens as chats and responses list them. */

/**
 * @typedef {{text: string, logprob: number | null, alternatives: {text: string, logprob: number}[]}} Token
 * @typedef {{index: number, id: string, name: string, arguments: string}} CallPiece
 * @typedef {{choice: number, text: string, reasoning: string, calls: CallPiece[], tokens: Token[],
 *   finish: string | null}} Delta
 */

/**
 * @param {Partial<Delta>} added
 * @returns {Delta}
 */
export function deltaWith(added) {
  return { choice: 0, text: "", reasoning: "", calls: [], tokens: [], finish: null, ...added };
}

/**
 * @param {any[] | null | undefined} tokens
 * @returns {Token[]}
 */
export function listedTokens(tokens) {
  return (tokens ?? []).map((token) => ({
    text: token.token,
    logprob: token.logprob,
    alternatives: (token.top_logprobs ?? []).map((other) => ({ text: other.token, logprob: other.logprob })),
  }));
}
