/** The tokens of an answer, each shown with how likely it was and what else could have stood there. */

import { element } from "./elements.js";

// The least probability of each class, the likeliest first. The class below the last one is `lp-4`.
const CLASSES = [0.9, 0.5, 0.2, 0.05];

/** @param {number | null} logprob */
export function classOf(logprob) {
  if (logprob === null) return "lp-none";
  const probability = Math.exp(logprob);
  const found = CLASSES.findIndex((least) => probability >= least);
  return `lp-${found < 0 ? CLASSES.length : found}`;
}

/** @param {number | null} logprob */
export function percent(logprob) {
  if (logprob === null) return "unknown";
  const value = Math.exp(logprob) * 100;
  return value >= 0.1 || value === 0 ? `${value.toFixed(1)} %` : `${value.toExponential(1)} %`;
}

/** Tokens that still arrive. Arrow keys go from one to the next; a focused token shows its alternatives. */
export class TokenView {
  #row = element("div", { class: "tokens", role: "group", "aria-label": "Tokens by probability" });
  #panel = element("div", { class: "token-panel", "aria-live": "polite" });
  #tokens = [];

  /** @param {HTMLElement} container */
  constructor(container) {
    this.#panel.append(element("p", { class: "muted" }, "Choose a token to see its alternatives."));
    container.append(this.#row, this.#panel);
    this.#row.addEventListener("keydown", (event) => this.#move(event));
    this.#row.addEventListener("focusin", (event) => this.#show(event.target));
  }

  /** @param {import("./delta.js").Token[]} tokens all of them */
  update(tokens) {
    for (const token of tokens.slice(this.#tokens.length)) this.#append(token);
  }

  #append(token) {
    const label = `${JSON.stringify(token.text)}, ${percent(token.logprob)}`;
    const attributes = { type: "button", class: `token ${classOf(token.logprob)}`, title: label, "aria-label": label };
    const button = element("button", attributes, visible(token.text));
    button.tabIndex = this.#tokens.length === 0 ? 0 : -1;
    this.#tokens.push(token);
    this.#row.append(button);
    if (token.text.endsWith("\n")) this.#row.append(element("br"));
  }

  #buttons() {
    return [...this.#row.querySelectorAll("button")];
  }

  #move(event) {
    const buttons = this.#buttons();
    const at = buttons.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons[at].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  }

  #show(button) {
    const token = this.#tokens[this.#buttons().indexOf(button)];
    if (!token) return;
    const rows = [token, ...token.alternatives.filter((other) => other.text !== token.text)].map((each, position) =>
      element(
        "tr",
        position === 0 ? { class: "chosen" } : {},
        element("th", { scope: "row" }, element("code", {}, JSON.stringify(each.text))),
        element("td", {}, percent(each.logprob)),
        element("td", {}, each.logprob === null ? "unknown" : each.logprob.toFixed(4)),
      ),
    );
    const head = ["Token", "Probability", "Log-probability"].map((name) => element("th", { scope: "col" }, name));
    const caption = element("caption", {}, "The chosen token first, then its alternatives");
    const table = element("table", {}, caption, element("thead", {}, element("tr", {}, ...head)));
    table.append(element("tbody", {}, ...rows));
    this.#panel.replaceChildren(table);
  }
}

/** A token's text with what cannot be seen made visible. */
function visible(text) {
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}
