/** The figures of one answer: time to the first token, pace, tokens. Times are milliseconds of one clock. */

/** What is noted while an answer arrives. */
export class Stopwatch {
  #start;
  #first = null;
  #last = null;
  #pieces = 0;
  #together = 0; // pieces that came with the first one: they were not generated while we watched
  #arrival = null;
  #now;

  /** @param {() => number} [now] milliseconds */
  constructor(now = () => performance.now()) {
    this.#now = now;
    this.#start = now();
  }

  /** A part of the answer is there. What is noted until the next one came with it. */
  arrived() {
    this.#arrival = this.#now();
  }

  /** @param {number} tokens of one piece */
  note(tokens) {
    this.#last = this.#arrival ?? this.#now();
    this.#first ??= this.#last;
    this.#pieces += tokens;
    if (this.#last === this.#first) this.#together += tokens;
  }

  /**
   * @param {import("./deltas.js").Usage | null} usage as the server tells it; without it pieces are counted
   * @param {boolean} streamed a whole answer has no first token
   */
  figures(usage, streamed) {
    const counted = streamed ? this.#pieces : null; // a whole answer is one piece, of any length
    const tokens = usage ? usage.completion : counted;
    const lasted = (this.#last ?? 0) - (this.#first ?? 0);
    const later = tokens === null ? 0 : (tokens * (this.#pieces - this.#together)) / this.#pieces;
    return {
      first: streamed && this.#first !== null ? this.#first - this.#start : null,
      total: this.#now() - this.#start,
      pace: streamed && lasted > 0 ? (later * 1000) / lasted : null,
      tokens,
      counted: usage === null, // by pieces: about so many
      prompt: usage?.prompt ?? null,
      cached: usage?.cached ?? 0,
    };
  }
}

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(2)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/**
 * Names and values for a person to read.
 *
 * @param {ReturnType<Stopwatch["figures"]>} figures
 * @returns {[string, string][]}
 */
export function described(figures) {
  const count = new Intl.NumberFormat("en");
  const found = [];
  if (figures.first !== null) found.push(["First token", duration(figures.first)]);
  if (figures.pace !== null) found.push(["Pace", `${figures.pace.toFixed(1)} tokens/s`]);
  else if (figures.first !== null) found.push(["Pace", "too short to measure"]);
  if (figures.tokens !== null) {
    found.push(["Answer", `${figures.counted ? "about " : ""}${count.format(figures.tokens)} tokens`]);
  }
  if (figures.prompt !== null) {
    const cached = figures.cached > 0 ? `, ${count.format(figures.cached)} from the cache` : "";
    found.push(["Prompt", `${count.format(figures.prompt)} tokens${cached}`]);
  }
  found.push(["Time", duration(figures.total)]);
  return found;
}
