/** The Playground's page: wires the form, the columns, the keyboard and what the tab keeps. */

import { CodeDialog } from "./code.js";
import { Pane } from "./pane.js";
import { inEveryShape, protocolOf, requestFor } from "./request.js";
import { checkControl, readOptions } from "./options.js";
import { load, save } from "./store.js";
import { Turn } from "./turn.js";

const MOST_PANES = 2;
const FORMS = ["structured_outputs", "guided_"]; // of answers that are no Markdown
const page = document.getElementById("playground");
const csrf = document.querySelector('meta[name="csrf-token"]').content;

class Playground {
  #panes = [];
  #running = null; // the AbortController of what is asked now
  #form = document.getElementById("ask");
  #protocol = document.getElementById("protocol");
  #prompt = document.getElementById("prompt");
  #system = document.getElementById("system");
  #stream = document.getElementById("stream");
  #code = new CodeDialog(document.getElementById("code"), csrf);
  #options = null; // the request for a form of options that is under way

  async start() {
    const kept = load();
    this.#addPane();
    const wanted = new URLSearchParams(location.search);
    if (kept) this.#restore(kept);
    if (wanted.has("endpoint")) this.#panes[0].choose(wanted.get("endpoint"), wanted.get("entity") ?? "");
    this.#listen();
    this.#followTask();
    if (!this.#isShown()) await this.#loadOptions();
    if (kept) applyValues(kept.options ?? {});
    this.#show();
    page.dataset.ready = "";
  }

  #listen() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#protocol.addEventListener("change", () => this.#loadOptions());
    document.getElementById("stop").addEventListener("click", () => this.#stop());
    document.getElementById("compare").addEventListener("click", () => this.#compare());
    document.getElementById("clear").addEventListener("click", () => this.#clear());
    document.getElementById("show-code").addEventListener("click", () => this.#showCode());
    document.addEventListener("keydown", (event) => this.#key(event));
    for (const name of ["input", "change", "playground-changed"]) page.addEventListener(name, () => this.#keepSoon());
    page.addEventListener("click", (event) => insertExample(event.target));
    page.addEventListener("change", (event) => {
      const control = event.target.closest("#options [data-kind]");
      if (control) checkControl(control);
    });
    addEventListener("pagehide", () => this.#keep());
  }

  #key(event) {
    if (document.querySelector("dialog[open]")) return; // its keys are its own
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.#send();
    }
    if (event.key === "Escape" && this.#running) this.#stop();
  }

  async #send() {
    if (this.#running) return;
    const spec = this.#spec();
    if (!spec) return;
    const text = this.#prompt.value;
    const asks = this.#panes.map((pane) => [pane, this.#asked(spec, pane, text)]);
    if (asks.every(([, asked]) => asked.length === 0)) {
      this.#say("Write a message first.");
      this.#prompt.focus();
      return;
    }
    if (spec.protocol.mode === "chat") this.#prompt.value = "";
    await this.#run(spec, asks.filter(([, asked]) => asked.length > 0));
  }

  /** Asks the last question of one column again. */
  async #again(pane) {
    if (this.#running) return;
    const spec = this.#spec();
    if (spec) await this.#run(spec, [[pane, pane.takeLast()]]);
  }

  async #run(spec, asks) {
    this.#running = new AbortController();
    this.#show();
    this.#say("Asking.");
    const runs = asks.map(async ([pane, asked]) => {
      const request = { ...requestFor(spec.protocol, this.#parts(spec, pane, asked)), csrf };
      const turn = new Turn(asked, spec.form);
      pane.add(turn);
      return turn.run(request, spec.stream, this.#running.signal);
    });
    const said = await Promise.all(runs);
    this.#running = null;
    this.#say(said.join(" "));
    this.#show();
    this.#keep();
  }

  /** What all columns share; null if an option is wrong, which the form then says. */
  #spec() {
    const form = document.getElementById("options");
    const { members, said, wrong } = readOptions(form);
    if (wrong.length > 0) {
      wrong[0].closest("details")?.setAttribute("open", "");
      (wrong[0].querySelector("textarea, select, input") ?? wrong[0]).focus();
      this.#say("An option is wrong.");
      return null;
    }
    const protocol = protocolOf(form.dataset);
    const isForm = said.form !== undefined || members.some(([path]) => FORMS.some((name) => path.startsWith(name)));
    const kind = protocol.mode === "text" || isForm ? "text" : "markdown";
    return { protocol, members, said, form: kind, stream: this.#stream.checked, system: this.#system.value };
  }

  /** What a person adds to one column's conversation. */
  #asked({ protocol }, pane, text) {
    if (protocol.mode === "text") return text === "" ? [] : [{ role: "prompt", content: text }];
    const said = text.trim() === "" ? [] : [{ role: "user", content: text }];
    return [...pane.results(), ...said];
  }

  /** What a request is made of. `before`: how many turns of the column go ahead; all, if it is not said. */
  #parts({ protocol, members, said, stream, system }, pane, asked, before) {
    const { endpoint, entity } = pane;
    const begin = system.trim() === "" ? [] : [{ role: "system", content: system }];
    const prompt = protocol.mode === "text" ? asked.at(-1).content : [...begin, ...pane.messages(before), ...asked];
    return { endpoint, entity, prompt, members, said, stream };
  }

  #stop() {
    this.#running?.abort();
  }

  #compare() {
    if (this.#panes.length >= MOST_PANES) return;
    const pane = this.#addPane();
    pane.allow(this.#tasks());
    pane.chooseAnother(this.#panes[0]);
    this.#show();
    this.#keep();
  }

  #clear() {
    for (const pane of this.#panes) pane.clear();
    this.#say("The conversation is empty.");
    this.#keep();
    this.#prompt.focus();
  }

  async #showCode() {
    const spec = this.#spec();
    if (!spec) return;
    const [pane] = this.#panes;
    const example = spec.protocol.mode === "text" ? "Once upon a time" : "Hello!";
    const typed = this.#asked(spec, pane, this.#prompt.value);
    const isLast = typed.length === 0 && pane.turns.length > 0; // nothing is typed: the last request again
    const asked = isLast ? pane.turns.at(-1).asked : typed;
    const before = isLast ? pane.turns.length - 1 : undefined;
    const parts = this.#parts(spec, pane, asked.length > 0 ? asked : this.#asked(spec, pane, example), before);
    const { entity, body } = requestFor(spec.protocol, parts);
    const { endpoint: model, task } = pane;
    const shapes = inEveryShape(spec.protocol, parts);
    await this.#code.open({ protocol: spec.protocol.id, model, task, entity, stream: spec.stream, body, shapes });
  }

  #addPane() {
    const pane = new Pane(document.getElementById("pane"), {
      changed: () => this.#followEndpoint(),
      again: (each) => this.#again(each),
      removed: (each) => this.#removePane(each),
    });
    this.#panes.push(pane);
    document.getElementById("panes").append(pane.node);
    return pane;
  }

  #removePane(pane) {
    this.#panes.splice(this.#panes.indexOf(pane), 1);
    pane.node.remove();
    this.#show();
    this.#followEndpoint();
  }

  /** The first column's endpoint decides which protocols there are. */
  #followTask() {
    const { task } = this.#panes[0];
    for (const option of this.#protocol.options) option.disabled = !option.dataset.tasks.split(" ").includes(task);
    if (this.#protocol.selectedOptions[0]?.disabled) {
      const first = [...this.#protocol.options].find((option) => !option.disabled);
      if (first) this.#protocol.value = first.value;
    }
  }

  async #followEndpoint() {
    this.#followTask();
    await this.#loadOptions();
  }

  #tasks() {
    return this.#protocol.selectedOptions[0]?.dataset.tasks.split(" ") ?? [];
  }

  /** Whether the form of options is the one for what is chosen now. */
  #isShown() {
    const { protocol, endpoint } = document.getElementById("options").dataset;
    return protocol === this.#protocol.value && endpoint === this.#panes[0].endpoint && this.#panes[0].entity === "";
  }

  /** Fetches the form of options of the chosen protocol, and keeps what was typed where names are the same. */
  async #loadOptions() {
    const { endpoint, entity } = this.#panes[0];
    const query = new URLSearchParams({ protocol: this.#protocol.value, endpoint, entity });
    this.#options?.abort();
    this.#options = new AbortController();
    let values;
    try {
      const answer = await fetch(`/console/playground/options?${query}`, { signal: this.#options.signal });
      const fetched = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("options");
      if (!fetched) throw new Error(`HTTP ${answer.status}`);
      values = valuesOf(); // what was typed while the form was under way counts, too
      document.getElementById("options").replaceWith(document.adoptNode(fetched));
    } catch (error) {
      if (error.name !== "AbortError") this.#say(`The options could not be loaded: ${error.message}`);
      return;
    }
    applyValues(values);
    for (const pane of this.#panes.slice(1)) pane.allow(this.#tasks());
    this.#show();
    this.#keep();
  }

  #show() {
    const isRunning = this.#running !== null;
    document.getElementById("send").hidden = isRunning;
    document.getElementById("stop").hidden = !isRunning;
    document.getElementById("clear").disabled = isRunning;
    document.getElementById("compare").hidden = this.#panes.length >= MOST_PANES;
    document.getElementById("compare").disabled = isRunning;
    const isChat = document.getElementById("options").dataset.mode !== "text";
    document.getElementById("system-field").hidden = !isChat;
    document.getElementById("prompt-label").textContent = isChat ? "Message" : "Prompt, as the model gets it";
    document.getElementById("panes").dataset.count = String(this.#panes.length);
    this.#panes.forEach((pane, position) => {
      pane.number(position, this.#panes.length === 1);
      pane.busy(isRunning);
    });
  }

  #say(text) {
    document.getElementById("status").textContent = text;
  }

  #timer = null;

  #keepSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#keep(), 300);
  }

  #keep() {
    save({
      protocol: this.#protocol.value,
      panes: this.#panes,
      system: this.#system.value,
      prompt: this.#prompt.value,
      stream: this.#stream.checked,
      options: valuesOf(),
    });
  }

  #restore(kept) {
    this.#protocol.value = kept.protocol;
    if (!this.#protocol.value) this.#protocol.selectedIndex = 0;
    this.#system.value = kept.system;
    this.#prompt.value = kept.prompt;
    this.#stream.checked = kept.stream;
    this.#panes[0].restore(kept.panes[0]);
    for (const each of kept.panes.slice(1, MOST_PANES)) this.#addPane().restore(each);
  }
}

/** The controls of the options, each with the name that it keeps in other protocols. */
function controls() {
  const all = document.querySelectorAll("#options :is(input, select, textarea):is([data-option], [data-path])");
  return [...all].map((control) => [control.dataset.option ?? control.dataset.path, control]);
}

/** What was typed into the options, by name. What a control has of itself belongs to its protocol alone. */
function valuesOf() {
  const found = {};
  for (const [name, control] of controls()) {
    if (control.value === control.defaultValue) continue;
    const value = control.type === "checkbox" ? control.checked : control.value;
    if (value !== "" && value !== false) found[name] = value;
  }
  return found;
}

function applyValues(values) {
  for (const [name, control] of controls()) {
    const value = values[name];
    if (value === undefined) continue;
    if (control.type === "checkbox") control.checked = value;
    else if (control.tagName !== "SELECT" || [...control.options].some((each) => each.value === value)) control.value = value;
    control.closest("details")?.setAttribute("open", "");
  }
}

/** A button may put an example into an empty field. */
function insertExample(button) {
  const field = button.dataset?.example && document.getElementById(button.dataset.for);
  if (!field || field.value.trim() !== "") return;
  field.value = button.dataset.example;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

if (page) new Playground().start();
