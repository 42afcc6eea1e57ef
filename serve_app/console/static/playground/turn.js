/** One question and its answer: the data, the request while it runs, and the view. */

import { Answer, messagesOf } from "./answer.js";
import { AnswerView } from "./answer_view.js";
import { Refused, ask } from "./ask.js";
import { copyButton, element } from "./elements.js";
import { Stopwatch, described } from "./figures.js";

export class Turn {
  node = element("article", { class: "turn" });
  answer = new Answer();
  /** @type {{role: string, content: string}[]} what the person added; one of role `prompt` is raw text */
  asked;
  #figures = null;
  #facts = null;
  #problem = null;
  #stopped = false;
  #form;
  #view;
  #head = element("div", { class: "asked" });
  #foot = element("div", { class: "turn-foot" });

  /**
   * @param {{role: string, content: string}[]} asked
   * @param {"markdown" | "text"} form how the answer's text is shown first
   */
  constructor(asked, form) {
    this.asked = asked;
    this.#form = form;
    this.#view = new AnswerView(this.answer, form);
    for (const message of asked) {
      const label = { user: "You", tool: "Tool result", prompt: "Prompt" }[message.role];
      this.#head.append(element("p", { class: "who" }, label), element("div", { class: "plain" }, message.content));
    }
    this.node.append(this.#head, this.#view.node, this.#foot);
  }

  /** What the conversation has of this turn. */
  messages() {
    return messagesOf({ asked: this.asked, choices: this.answer.choices, problem: this.#problem });
  }

  /**
   * Asks, shows what arrives, and ends when the answer does. Errors become part of the view.
   *
   * @param {import("./ask.js").Request} request
   * @param {boolean} streamed
   * @param {AbortSignal} signal
   * @returns {Promise<string>} what to say of it, in a sentence
   */
  async run(request, streamed, signal) {
    const watch = new Stopwatch();
    let usage = null;
    this.node.setAttribute("aria-busy", "true");
    try {
      await ask(
        request,
        {
          facts: (facts) => (this.#facts = facts),
          arrived: () => watch.arrived(),
          usage: (told) => (usage = told),
          delta: (delta) => {
            const adds = delta.text !== "" || delta.reasoning !== "" || delta.calls.length > 0;
            if (adds || delta.tokens.length > 0) watch.note(delta.tokens.length || 1);
            this.answer.add(delta);
            this.#view.update();
          },
        },
        signal,
      );
    } catch (error) {
      this.#stopped = signal.aborted;
      if (!this.#stopped) this.#problem = asProblem(error);
    }
    this.#figures = watch.figures(usage, streamed);
    this.node.removeAttribute("aria-busy");
    this.draw();
    if (this.#problem) return `Error: ${this.#problem.message}`;
    const { tokens } = this.#figures;
    return `${this.#stopped ? "Stopped" : "Answered"}${tokens === null ? "" : `, ${tokens} tokens`}.`;
  }

  /** Draws everything now. */
  draw() {
    this.#view.draw();
    const parts = [];
    if (this.#problem) parts.push(problemView(this.#problem));
    const finish = this.answer.choices.map((choice) => choice.finish).filter((each) => each !== null);
    const figures = this.#figures ? described(this.#figures) : [];
    if (this.#stopped) figures.push(["End", "stopped by you"]);
    else if (finish.length > 0) figures.push(["End", finish.join(", ")]);
    if (this.#facts?.entity) figures.push(["Entity", this.#facts.entity]);
    if (figures.length > 0 && !(this.#problem && this.answer.choices.length === 0)) parts.push(list(figures));
    if (this.#facts?.ignored) {
      parts.push(element("p", { class: "muted" }, `Ignored by the server: ${this.#facts.ignored}`));
    }
    if (this.#facts?.id) {
      const id = element("p", { class: "request-id muted" }, "Request ", element("code", {}, this.#facts.id), " ");
      id.append(copyButton("Copy id", () => this.#facts.id));
      parts.push(id);
    }
    this.#foot.replaceChildren(...parts);
  }

  toJSON() {
    return {
      asked: this.asked,
      form: this.#form,
      choices: this.answer.choices,
      figures: this.#figures,
      facts: this.#facts,
      problem: this.#problem,
      stopped: this.#stopped,
    };
  }

  /** @param {ReturnType<Turn["toJSON"]>} kept */
  static restored(kept) {
    const turn = new Turn(kept.asked, kept.form);
    turn.answer.choices.push(...kept.choices);
    turn.#figures = kept.figures;
    turn.#facts = kept.facts;
    turn.#problem = kept.problem;
    turn.#stopped = kept.stopped || !kept.figures; // the page was left while it ran
    turn.draw();
    return turn;
  }
}

function asProblem(error) {
  if (error instanceof Refused) {
    const { message, kind, field, status, retryAfter } = error;
    return { message, kind, field, status, retryAfter };
  }
  return { message: `The connection to the server is broken: ${error.message}`, kind: "", field: "", status: 0, retryAfter: "" };
}

function problemView(problem) {
  const view = element("div", { class: "problem", role: "alert" }, element("p", {}, problem.message));
  const said = [problem.status ? `HTTP ${problem.status}` : "", problem.kind, problem.field && `field ${problem.field}`];
  if (problem.retryAfter) said.push(`try again in ${problem.retryAfter} s`);
  const line = said.filter((each) => each !== "").join(" · ");
  if (line) view.append(element("p", { class: "muted" }, line));
  return view;
}

function list(figures) {
  const items = figures.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  return element("dl", { class: "turn-figures" }, ...items);
}
