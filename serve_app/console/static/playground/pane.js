/** One column of the Playground: whom it asks, and its conversation. */

import { Follower } from "./follow.js";
import { Turn } from "./turn.js";

export class Pane {
  node;
  turns = [];
  #endpoint;
  #entity;
  #log;
  #turns;
  #follower;

  /**
   * @param {HTMLTemplateElement} template
   * @param {{changed: () => void, again: (pane: Pane) => void, removed: (pane: Pane) => void}} on
   */
  constructor(template, on) {
    this.node = template.content.firstElementChild.cloneNode(true);
    this.#endpoint = this.node.querySelector("[data-part=endpoint]");
    this.#entity = this.node.querySelector("[data-part=entity]");
    this.#log = this.node.querySelector("[data-part=log]");
    this.#turns = this.node.querySelector("[data-part=turns]");
    this.#follower = new Follower(this.#log, this.#turns, this.node.querySelector("[data-part=newest]"));
    this.#endpoint.addEventListener("change", () => {
      this.#listEntities();
      on.changed();
    });
    this.#entity.addEventListener("change", () => on.changed());
    this.node.querySelector("[data-part=again]").addEventListener("click", () => on.again(this));
    this.node.querySelector("[data-part=remove]").addEventListener("click", () => on.removed(this));
    this.#listEntities();
    this.#show();
  }

  get endpoint() {
    return this.#endpoint.value;
  }

  get entity() {
    return this.#entity.value;
  }

  get task() {
    return this.#endpoint.selectedOptions[0]?.dataset.task ?? "";
  }

  /** Names, ids and labels that a page may have once. */
  number(position, alone) {
    const name = alone ? "" : ` of column ${position + 1}`;
    this.#endpoint.setAttribute("aria-label", `Endpoint${name}`);
    this.#entity.setAttribute("aria-label", `Served entity${name}`);
    this.#log.setAttribute("aria-label", `Conversation${name}`);
    this.node.querySelector("[data-part=remove]").hidden = alone;
  }

  /** Whether there is such an endpoint to ask. */
  has(endpoint) {
    return [...this.#endpoint.options].some((each) => each.value === endpoint && !each.disabled);
  }

  /** Chooses whom to ask; what does not exist is not chosen. */
  choose(endpoint, entity) {
    if (this.has(endpoint)) {
      this.#endpoint.value = endpoint;
      this.#listEntities();
    }
    if ([...this.#entity.options].some((each) => each.value === entity)) this.#entity.value = entity;
  }

  /** Chooses the entity after the one of `other`, to compare the two. */
  chooseAnother(other) {
    this.choose(other.endpoint, "");
    const names = [...this.#entity.options].map((each) => each.value).filter((name) => name !== "");
    if (this.#entity.disabled || names.length < 2) return;
    const taken = other.entity || names[0];
    if (other.entity === "") other.choose(other.endpoint, taken);
    this.choose(other.endpoint, names.find((name) => name !== taken));
  }

  /** Endpoints that cannot be asked in this protocol cannot be chosen. */
  allow(tasks) {
    for (const option of this.#endpoint.options) option.disabled = !tasks.includes(option.dataset.task);
    if (!this.#endpoint.selectedOptions[0]?.disabled) return;
    const first = [...this.#endpoint.options].find((option) => !option.disabled);
    if (first) this.choose(first.value, "");
  }

  /** The messages of the first `count` turns, or of all. */
  messages(count = this.turns.length) {
    return this.turns.slice(0, count).flatMap((turn) => turn.messages());
  }

  /** What the person says the last answer's tools returned. */
  results() {
    return this.turns.at(-1)?.answer.results() ?? [];
  }

  /** @param {Turn} turn */
  add(turn) {
    this.turns.push(turn);
    this.#turns.append(turn.node);
    this.#show();
    this.#follower.follow();
  }

  /** Takes the last turn away, and tells what it had asked. */
  takeLast() {
    const turn = this.turns.pop();
    turn?.node.remove();
    this.#show();
    return turn?.asked ?? [];
  }

  clear() {
    while (this.turns.length > 0) this.takeLast();
  }

  busy(isBusy) {
    this.node.querySelector("[data-part=again]").disabled = isBusy;
    this.node.querySelector("[data-part=remove]").disabled = isBusy;
  }

  toJSON() {
    return { endpoint: this.endpoint, entity: this.entity, turns: this.turns };
  }

  restore(kept) {
    this.choose(kept.endpoint, kept.entity);
    this.#takeTurns(kept.turns);
  }

  /** Has the conversation of `other` from now on, as it is. */
  continue(other) {
    this.#takeTurns(JSON.parse(JSON.stringify(other.turns)));
  }

  #takeTurns(turns) {
    for (const each of turns) this.add(Turn.restored(each));
  }

  #show() {
    this.node.querySelector("[data-part=empty]").hidden = this.turns.length > 0;
    this.node.querySelector("[data-part=again]").hidden = this.turns.length === 0;
  }

  #listEntities() {
    const entities = JSON.parse(this.#endpoint.selectedOptions[0]?.dataset.entities ?? "[]");
    const split = new Option("By traffic", "");
    const named = entities.map(
      ({ name, traffic, ready }) => new Option(`${name} · ${traffic} %${ready ? "" : " · not ready"}`, name),
    );
    this.#entity.replaceChildren(split, ...named);
    this.#entity.hidden = entities.length < 2;
    this.#entity.disabled = this.#entity.dataset.mayChoose === undefined;
  }
}
