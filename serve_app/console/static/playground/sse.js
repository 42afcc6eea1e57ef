/** Server-sent events out of text that arrives in pieces. Knows no protocol above them. */

const LINE_END = /\r\n|\n|\r/g;

/** Takes pieces of a stream, and tells the events that each piece completes. */
export class EventParser {
  #rest = "";
  #event = "";
  #data = [];

  /**
   * @param {string} text the next piece, cut anywhere
   * @returns {{event: string, data: string}[]} the events that end in this piece
   */
  push(text) {
    const found = [];
    // A carriage return at the end may be the first half of a line end.
    const joined = this.#rest + text;
    const whole = joined.endsWith("\r") ? joined.slice(0, -1) : joined;
    let from = 0;
    for (const end of whole.matchAll(LINE_END)) {
      this.#line(whole.slice(from, end.index), found);
      from = end.index + end[0].length;
    }
    this.#rest = joined.slice(from);
    return found;
  }

  #line(line, found) {
    if (line === "") {
      if (this.#data.length > 0) found.push({ event: this.#event || "message", data: this.#data.join("\n") });
      this.#event = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    if (name === "event") this.#event = value;
  }
}

/**
 * The events of an answer's body, each when it has arrived.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} [arrived] is called when a part of the body is there, before its events
 */
export async function* eventsOf(body, arrived = () => {}) {
  const parser = new EventParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      arrived();
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {}); // the stream may have failed already, which `read` has told
  }
}
