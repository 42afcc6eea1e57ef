/** The Playground's page: wires the chat, its columns, the options and what this browser keeps. */

import { ChatList } from "./chat_list.js";
import { Chats, newId, titleOf } from "./chat_storage.js";
import { CodeDialog } from "./code.js";
import { Composer } from "./composer.js";
import { applyValues, insertExample, valuesOf } from "./option_values.js";
import { checkControl, readOptions } from "./options.js";
import { Pane } from "./pane.js";
import { closePanels, coversChat } from "./panels.js";
import { Presets } from "./presets.js";
import { inEveryShape, protocolOf, requestFor } from "./request.js";
import { load, save } from "./tab_state.js";
import { Turn } from "./turn.js";
import { Vault } from "./encrypted_storage.js";

const MOST_PANES = 2;
const KEEP_AFTER_MS = 300;
const NEW_CHAT = "New chat";
const FORMS = ["structured_outputs", "guided_"]; // of answers that are no Markdown
const page = document.getElementById("playground");
const csrf = document.querySelector('meta[name="csrf-token"]').content;
const part = (id) => document.getElementById(id);

class Playground {
  #panes = [];
  #running = null; // the AbortController of what is asked now
  #chat = freshChat(); // which of the chats is shown
  #protocol = part("protocol");
  #system = part("system");
  #stream = part("stream");
  #composer = new Composer(() => this.#send());
  #code = new CodeDialog(part("code"), csrf);
  #options = null; // the request for a form of options that is under way
  #chats;
  #list;
  #presets;

  async start() {
    const vault = await Vault.open(page.dataset.owner, page.dataset.key);
    this.#chats = new Chats(vault);
    this.#list = new ChatList(this.#chats, {
      open: (chat) => this.#open(chat),
      deleted: (id) => (id === this.#chat.id ? this.#new() : this.#show()),
      renamed: (id, title) => this.#rename(id, title),
    });
    this.#presets = new Presets(vault, (said) => {
      if (said) this.#composer.say(said);
      this.#keepSoon();
    });
    part("chats-hint").hidden = vault.isLasting;
    await Promise.all([this.#chats.load(), this.#presets.load()]);
    const kept = load(page.dataset.owner);
    this.#addPane();
    if (kept) this.#restore(kept.chat);
    this.#composer.text = kept?.prompt ?? "";
    this.#followLink();
    this.#listen();
    this.#followTask();
    if (!this.#isShown()) await this.#loadOptions(kept?.chat.options);
    else if (kept) applyValues(kept.chat.options);
    this.#show();
    page.dataset.ready = "";
  }

  /** The address may name an endpoint and an entity. A chat with another one stays in the list as it is. */
  #followLink() {
    const wanted = new URLSearchParams(location.search);
    const [first] = this.#panes;
    if (!wanted.has("endpoint") || !first.has(wanted.get("endpoint"))) return;
    const before = `${first.endpoint} ${first.entity}`;
    first.choose(wanted.get("endpoint"), wanted.get("entity") ?? "");
    if (`${first.endpoint} ${first.entity}` !== before && first.turns.length > 0) this.#empty();
    // Loaded again, the page shows what is chosen then.
    if (first.entity === (wanted.get("entity") ?? "")) history.replaceState(null, "", location.pathname);
  }

  #listen() {
    part("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#protocol.addEventListener("change", () => this.#loadOptions());
    part("stop").addEventListener("click", () => this.#stop());
    part("compare").addEventListener("click", () => this.#compare());
    part("new-chat").addEventListener("click", () => this.#new());
    part("show-code").addEventListener("click", () => this.#showCode());
    document.addEventListener("keydown", (event) => this.#key(event));
    for (const name of ["input", "change", "playground-changed"]) page.addEventListener(name, () => this.#keepSoon());
    page.addEventListener("click", (event) => insertExample(event.target));
    page.addEventListener("change", (event) => {
      const control = event.target.closest("#options [data-kind]");
      if (control) checkControl(control);
    });
    addEventListener("storage", async (event) => {
      if (await this.#chats.changed(event.key)) this.#list.show();
    });
    const kept = new AbortController();
    addEventListener("pagehide", () => this.#keepInTab(), kept);
    document.addEventListener("sign-out", () => kept.abort());
  }

  #key(event) {
    if (document.querySelector("dialog[open]")) return; // its keys are its own
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.#send();
    }
    if (event.key !== "Escape") return;
    if (coversChat()) closePanels();
    else this.#stop();
  }

  async #send() {
    if (this.#running) return;
    const spec = this.#spec();
    if (!spec) return;
    const { text } = this.#composer;
    const asks = this.#panes.map((pane) => [pane, this.#asked(spec, pane, text)]);
    if (asks.every(([, asked]) => asked.length === 0)) {
      this.#composer.say("Write a message first.");
      this.#composer.focus();
      return;
    }
    if (spec.protocol.mode === "chat") this.#composer.text = "";
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
    this.#composer.say("Asking.");
    const runs = asks.map(async ([pane, asked]) => {
      const request = { ...requestFor(spec.protocol, this.#parts(spec, pane, asked)), csrf };
      const turn = new Turn(asked, spec.form);
      pane.add(turn);
      return turn.run(request, spec.stream, this.#running.signal);
    });
    this.#chat.title ||= titleOf(this.#state().panes);
    this.#chat.updated = Date.now();
    this.#keep();
    this.#show();
    const said = await Promise.all(runs);
    this.#running = null;
    this.#composer.say(said.join(" "));
    this.#keep();
    this.#show();
  }

  /** What all columns share; null if an option is wrong, which the form then says. */
  #spec() {
    const form = part("options");
    const { members, said, wrong } = readOptions(form);
    if (wrong.length > 0) {
      part("settings").hidden = false;
      wrong[0].closest("details")?.setAttribute("open", "");
      (wrong[0].querySelector("textarea, select, input") ?? wrong[0]).focus();
      this.#composer.say("An option is wrong.");
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

  /** A second column with the same conversation, to go on with another entity or endpoint. */
  #compare() {
    if (this.#panes.length >= MOST_PANES) return;
    const [first] = this.#panes;
    const pane = this.#addPane();
    pane.allow(this.#tasks());
    pane.chooseAnother(first);
    pane.continue(first);
    this.#show();
    this.#keep();
  }

  #new() {
    this.#empty();
    closePanels();
    this.#composer.say("");
    this.#show();
    this.#keepInTab();
    this.#composer.focus();
  }

  /** A chat without turns, with what is chosen now. */
  #empty() {
    for (const pane of this.#panes) pane.clear();
    this.#chat = freshChat();
  }

  async #open(chat) {
    this.#empty();
    for (const pane of this.#panes.slice(1)) this.#removePane(pane);
    this.#restore(JSON.parse(JSON.stringify(chat)));
    closePanels();
    this.#show();
    this.#followTask();
    await this.#loadOptions(chat.options);
  }

  #rename(id, title) {
    const chat = this.#chats.get(id);
    if (id === this.#chat.id) this.#chat.title = title;
    if (chat) this.#chats.save({ ...chat, title });
    this.#show();
    this.#keepInTab();
  }

  async #showCode() {
    const spec = this.#spec();
    if (!spec) return;
    const [pane] = this.#panes;
    const example = spec.protocol.mode === "text" ? "Once upon a time" : "Hello!";
    const typed = this.#asked(spec, pane, this.#composer.text);
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
    const pane = new Pane(part("pane"), {
      changed: () => this.#followEndpoint(),
      again: (each) => this.#again(each),
      removed: (each) => {
        this.#removePane(each);
        this.#show();
        this.#followEndpoint();
      },
    });
    this.#panes.push(pane);
    part("panes").append(pane.node);
    return pane;
  }

  #removePane(pane) {
    this.#panes.splice(this.#panes.indexOf(pane), 1);
    pane.node.remove();
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
    const { protocol, endpoint } = part("options").dataset;
    return protocol === this.#protocol.value && endpoint === this.#panes[0].endpoint && this.#panes[0].entity === "";
  }

  /**
   * Fetches the form of options of the chosen protocol.
   *
   * @param {Record<string, any>} [values] of the options; else what was typed stays where names are the same
   */
  async #loadOptions(values) {
    const { endpoint, entity } = this.#panes[0];
    const query = new URLSearchParams({ protocol: this.#protocol.value, endpoint, entity });
    this.#options?.abort();
    this.#options = new AbortController();
    try {
      const answer = await fetch(`/console/playground/options?${query}`, { signal: this.#options.signal });
      const fetched = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("options");
      if (!fetched) throw new Error(`HTTP ${answer.status}`);
      values ??= valuesOf(); // what was typed while the form was under way counts, too
      part("options").replaceWith(document.adoptNode(fetched));
    } catch (error) {
      if (error.name !== "AbortError") this.#composer.say(`The options could not be loaded: ${error.message}`);
      return;
    }
    applyValues(values);
    for (const pane of this.#panes.slice(1)) pane.allow(this.#tasks());
    this.#show();
    this.#keep();
  }

  #show() {
    const isRunning = this.#running !== null;
    part("send").hidden = isRunning;
    part("stop").hidden = !isRunning;
    part("new-chat").disabled = isRunning;
    part("compare").hidden = this.#panes.length >= MOST_PANES;
    part("compare").disabled = isRunning;
    const isChat = part("options").dataset.mode !== "text";
    part("system-field").hidden = !isChat;
    part("system-preview").textContent = this.#system.value.split("\n", 1)[0];
    this.#composer.label(isChat);
    part("panes").dataset.count = String(this.#panes.length);
    part("chat-title").textContent = this.#chat.title || NEW_CHAT;
    this.#panes.forEach((pane, position) => {
      pane.number(position, this.#panes.length === 1);
      pane.busy(isRunning);
    });
    this.#list.show(this.#chat.id, isRunning);
  }

  #timer = null;

  #keepSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      part("system-preview").textContent = this.#system.value.split("\n", 1)[0];
      this.#keep();
    }, KEEP_AFTER_MS);
  }

  /** The chat as it is now, to be shown again. */
  #state() {
    return {
      ...this.#chat,
      protocol: this.#protocol.value,
      panes: this.#panes.map((pane) => pane.toJSON()),
      system: this.#system.value,
      stream: this.#stream.checked,
      options: valuesOf(),
    };
  }

  #keepInTab() {
    save(page.dataset.owner, { chat: this.#state(), prompt: this.#composer.text });
  }

  /** In the tab, and in the list of chats if something was asked. */
  async #keep() {
    this.#keepInTab();
    const chat = JSON.parse(JSON.stringify(this.#state()));
    if (chat.panes.every((pane) => pane.turns.length === 0)) return;
    if (!(await this.#chats.save(chat))) this.#composer.say("This browser has no room for the chat: export it, or delete others.");
  }

  #restore({ id, title, created, updated, ...kept }) {
    this.#chat = { id, title, created, updated };
    this.#protocol.value = kept.protocol;
    if (!this.#protocol.value) this.#protocol.selectedIndex = 0;
    this.#system.value = kept.system;
    this.#stream.checked = kept.stream;
    this.#panes[0].restore(kept.panes[0]);
    for (const each of kept.panes.slice(1, MOST_PANES)) this.#addPane().restore(each);
  }
}

function freshChat() {
  return { id: newId(), title: "", created: Date.now(), updated: Date.now() };
}

if (page) new Playground().start();
