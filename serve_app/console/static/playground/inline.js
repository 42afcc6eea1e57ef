/**
 * Markdown inside a line: code, emphasis, links. Text becomes plain data, never markup.
 *
 * Time grows with the length of the text, whatever a model writes: open marks and the lengths of links are
 * bounded, and no expression goes back over what it has read.
 */

/**
 * @typedef {{type: "text" | "code", text: string}
 *   | {type: "strong" | "em" | "del", children: Inline[]}
 *   | {type: "link", href: string, children: Inline[]}} Inline
 */

const OPEN_MARKS = 32; // emphasis that may be open at a time
const LABEL_LENGTH = 400;
const URL_LENGTH = 2000;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const KINDS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const SPECIAL = /[\\`*_~[!<h]/g;
const BARE_URL = /https?:\/\/[^\s<>"'`\\^{|}\[\]]{1,2000}/iy;
const WORD = /[\p{L}\p{N}]/u;

/**
 * @param {string} text
 * @param {boolean} [links] whether links may stand in it; a link has no link inside
 * @returns {Inline[]}
 */
export function inlineOf(text, links = true) {
  return new Scan(text, links).nodes();
}

/**
 * The address of a link if it is of a kind that is safe to follow, else null.
 *
 * @param {string} address
 */
export function safeAddress(address) {
  if (address.length > URL_LENGTH) return null;
  try {
    const url = new URL(address);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null; // relative ones too: a model does not know this server's pages
  }
}

class Scan {
  #text;
  #links;
  #at = 0;
  #out = [];
  #open = []; // {mark, index of its text in #out}
  #closed = -1; // where the next angle bracket closes
  #unclosed = new Set(); // lengths of backtick runs that no later run closes

  constructor(text, links) {
    this.#text = text;
    this.#links = links;
  }

  nodes() {
    const text = this.#text;
    while (this.#at < text.length) {
      SPECIAL.lastIndex = this.#at;
      const next = SPECIAL.exec(text)?.index ?? text.length;
      if (next > this.#at) this.#say(text.slice(this.#at, next));
      this.#at = next;
      if (next < text.length && !this.#special(text[next])) {
        this.#say(text[next]);
        this.#at = next + 1;
      }
    }
    return merged(this.#out);
  }

  /** Reads what begins here; false if it is a character like any other. */
  #special(character) {
    if (character === "\\") return this.#escape();
    if (character === "`") return this.#code();
    if (character === "[") return this.#link(0);
    if (character === "!") return this.#text[this.#at + 1] === "[" && this.#link(1);
    if (character === "<") return this.#angle();
    if (character === "h") return this.#bare();
    return this.#emphasis(character);
  }

  #say(text) {
    this.#out.push({ type: "text", text });
  }

  #escape() {
    const next = this.#text[this.#at + 1];
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.#say(next);
    this.#at += 2;
    return true;
  }

  #code() {
    const run = runAt(this.#text, this.#at, "`");
    const from = this.#at + run;
    let at = this.#unclosed.has(run) ? -1 : from;
    while (at >= 0) {
      at = this.#text.indexOf("`", at);
      if (at < 0) break;
      const length = runAt(this.#text, at, "`");
      if (length === run) {
        const inner = this.#text.slice(from, at).replace(/\n/g, " ");
        const padded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
        this.#out.push({ type: "code", text: padded ? inner.slice(1, -1) : inner });
        this.#at = at + run;
        return true;
      }
      at += length;
    }
    this.#unclosed.add(run);
    this.#say("`".repeat(run));
    this.#at = from;
    return true;
  }

  #emphasis(character) {
    const run = runAt(this.#text, this.#at, character, 3);
    if (character === "~" && run < 2) return false;
    // Three marks in a row may close what was opened last, and then what was opened before.
    const last = this.#open.at(-1)?.mark;
    const mark = run === 3 && last?.[0] === character ? last : character.repeat(character === "~" ? 2 : Math.min(run, 2));
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[this.#at + mark.length] ?? " ";
    const inWord = character === "_" && WORD.test(before) && WORD.test(after);
    const opened = this.#open.findLastIndex((each) => each.mark === mark);
    if (!/\s/.test(before) && !inWord && opened >= 0 && this.#open[opened].index < this.#out.length - 1) {
      const { index } = this.#open[opened];
      const children = merged(this.#out.splice(index).slice(1));
      this.#out.push({ type: KINDS[mark], children });
      this.#open.length = opened;
    } else if (!/\s/.test(after) && !inWord && this.#open.length < OPEN_MARKS) {
      this.#open.push({ mark, index: this.#out.length });
      this.#say(mark);
    } else {
      this.#say(mark);
    }
    this.#at += mark.length;
    return true;
  }

  /** `[label](address)`; after `skip` characters, which is 1 for an image, of which only a link is kept. */
  #link(skip) {
    const from = this.#at + skip + 1;
    const close = closing(this.#text, from, "[", "]", LABEL_LENGTH);
    if (!this.#links || close < 0 || this.#text[close + 1] !== "(") return false;
    const end = closing(this.#text, close + 2, "(", ")", URL_LENGTH);
    if (end < 0) return false;
    const inside = this.#text.slice(close + 2, end).trim();
    const href = safeAddress(inside.split(/\s/, 1)[0].replace(/^<|>$/g, ""));
    if (href === null) return false;
    const label = this.#text.slice(from, close);
    const children = inlineOf(label || href, false);
    this.#out.push({ type: "link", href, children });
    this.#at = end + 1;
    return true;
  }

  #angle() {
    if (this.#closed < this.#at) {
      const next = this.#text.indexOf(">", this.#at);
      this.#closed = next < 0 ? Infinity : next;
    }
    if (!this.#links || this.#closed - this.#at > URL_LENGTH) return false;
    const address = this.#text.slice(this.#at + 1, this.#closed);
    const href = /\s/.test(address) ? null : safeAddress(address);
    if (href === null) return false;
    this.#out.push({ type: "link", href, children: [{ type: "text", text: address }] });
    this.#at = this.#closed + 1;
    return true;
  }

  #bare() {
    if (!this.#links || WORD.test(this.#text[this.#at - 1] ?? " ")) return false;
    BARE_URL.lastIndex = this.#at;
    const found = BARE_URL.exec(this.#text)?.[0].replace(/[.,:;!?*_~)]{1,8}$/, "");
    const href = found === undefined ? null : safeAddress(found);
    if (href === null) return false;
    this.#out.push({ type: "link", href, children: [{ type: "text", text: found }] });
    this.#at += found.length;
    return true;
  }
}

/** How often `character` stands at `at` in a row, counted up to `most`. */
function runAt(text, at, character, most = Infinity) {
  let end = at;
  while (end - at < most && text[end] === character) end += 1;
  return end - at;
}

/** Where the bracket closes that is open before `from`, at most `length` characters on; -1: nowhere. */
function closing(text, from, open, close, length) {
  let depth = 1;
  const end = Math.min(text.length, from + length);
  for (let at = from; at < end; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === open) depth += 1;
    else if (text[at] === close && --depth === 0) return at;
  }
  return -1;
}

/** Neighbouring texts as one. */
function merged(nodes) {
  const found = [];
  for (const node of nodes) {
    const last = found.at(-1);
    if (node.type === "text" && last?.type === "text") last.text += node.text;
    else found.push(node.type === "text" ? { ...node } : node);
  }
  return found;
}
