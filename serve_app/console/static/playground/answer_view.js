/** The view of an answer as it grows. A request for several choices has them side by side. */

import { copyButton, element } from "./elements.js";
import { MarkdownView } from "./markdown.js";
import { TokenView } from "./tokens.js";

/** The view of an answer. It draws at most once a frame, however fast deltas come. */
export class AnswerView {
  node = element("div", { class: "answer" });
  #answer;
  #views = [];
  #form;
  #planned = false;

  /**
   * @param {import("./answer.js").Answer} answer
   * @param {"markdown" | "text"} form how text is shown first
   */
  constructor(answer, form) {
    this.#answer = answer;
    this.#form = form;
  }

  /** Shows what the answer has now, at the next frame. */
  update() {
    if (this.#planned) return;
    this.#planned = true;
    // A tab in the background has no frames.
    const soon = document.hidden ? (draw) => setTimeout(draw, 100) : requestAnimationFrame;
    soon(() => {
      this.#planned = false;
      this.draw();
    });
  }

  draw() {
    this.#answer.choices.forEach((choice, position) => {
      if (!this.#views[position]) {
        this.#views[position] = new ChoiceView(choice, this.#form);
        this.node.append(this.#views[position].node);
      }
      this.#views[position].draw(position, this.#answer.choices.length);
    });
  }
}

/** The view of one choice: thoughts, text in one of three forms, calls of tools. */
class ChoiceView {
  node = element("section", { class: "choice" });
  #choice;
  #title = element("h4", { class: "choice-title", hidden: "" });
  #thoughts = element("details", { class: "thoughts", hidden: "" }, element("summary", {}, "Thoughts"));
  #thought = element("div", { class: "plain" });
  #text = element("div", { class: "answer-text" });
  #plain = element("div", { class: "answer-text plain" });
  #tokens = element("div", { class: "answer-tokens" });
  #calls = element("div", { class: "calls" });
  #bar = element("div", { class: "answer-bar", role: "group", "aria-label": "How the answer is shown" });
  #buttons = {};
  #markdown = new MarkdownView(this.#text);
  #tokenView = new TokenView(this.#tokens);
  #form;
  #place = [0, 1]; // which choice of how many

  constructor(choice, form) {
    this.#choice = choice;
    this.#form = form;
    this.#thoughts.append(this.#thought);
    for (const [name, label] of [["markdown", "Markdown"], ["text", "Plain text"], ["tokens", "Tokens"]]) {
      const button = element("button", { type: "button", class: "small quiet" }, label);
      button.addEventListener("click", () => this.#show(name));
      this.#buttons[name] = button;
      this.#bar.append(button);
    }
    this.#bar.append(copyButton("Copy", () => this.#choice.text));
    this.node.append(this.#title, this.#thoughts, this.#text, this.#plain, this.#tokens, this.#calls, this.#bar);
  }

  draw(position, choices) {
    const { text, reasoning, tokens, calls } = this.#choice;
    this.#place = [position, choices];
    this.#title.hidden = choices < 2;
    this.#title.textContent = `Choice ${position + 1}`;
    this.#thoughts.hidden = reasoning === "";
    this.#thought.textContent = reasoning;
    this.#buttons.tokens.hidden = tokens.length === 0;
    if (this.#form === "markdown") this.#markdown.update(text);
    if (this.#form === "text") this.#plain.textContent = text;
    if (this.#form === "tokens") this.#tokenView.update(tokens);
    calls.forEach((call, at) => this.#call(call, at));
    this.#show(this.#form, false);
  }

  #show(form, draw = true) {
    this.#form = form;
    this.#text.hidden = form !== "markdown";
    this.#plain.hidden = form !== "text";
    this.#tokens.hidden = form !== "tokens";
    for (const [name, button] of Object.entries(this.#buttons)) button.setAttribute("aria-pressed", String(name === form));
    if (draw) this.draw(...this.#place);
  }

  #call(call, at) {
    if (!this.#calls.children[at]) {
      const result = element("textarea", { rows: "2", placeholder: "What the tool returns. It is sent with your next message." });
      result.value = call.result;
      result.addEventListener("input", () => {
        call.result = result.value;
        result.dispatchEvent(new CustomEvent("playground-changed", { bubbles: true }));
      });
      const head = element("p", {}, "Calls ", element("code", { class: "call-name" }));
      const label = element("label", {}, "Result", result);
      this.#calls.append(element("div", { class: "call" }, head, element("pre", { tabindex: "0", "aria-label": "Arguments" }), label));
    }
    const shown = this.#calls.children[at];
    shown.querySelector(".call-name").textContent = call.name;
    shown.querySelector("pre").textContent = pretty(call.arguments);
  }
}

/** JSON with line breaks if it is whole, else as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
