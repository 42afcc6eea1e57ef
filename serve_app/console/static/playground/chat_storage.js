/** The chats of one API key in this browser: plain data, kept in its vault. Knows no page. */

import { messagesOf } from "./answer.js";

/**
 * @typedef {{id: string, title: string, created: number, updated: number, protocol: string, panes: any[],
 *   system: string, stream: boolean, options: Record<string, any>}} Chat times are milliseconds since 1970
 */

const START = "chat:";
const MOST = 100;
const TITLE_LENGTH = 60;

export class Chats {
  #vault;
  #all = new Map();

  /** @param {import("./encrypted_storage.js").Vault} vault */
  constructor(vault) {
    this.#vault = vault;
  }

  async load() {
    await Promise.all(this.#vault.names(START).map((name) => this.#read(name)));
  }

  /** @returns {Chat[]} the newest first */
  get list() {
    return [...this.#all.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id) {
    return this.#all.get(id);
  }

  /**
   * Keeps a chat. The oldest ones make room: of more than a hundred, and where the browser's storage is full.
   *
   * @param {Chat} chat
   * @returns {Promise<boolean>} false if it has no room by itself
   */
  async save(chat) {
    this.#all.set(chat.id, chat);
    const others = this.list.filter(({ id }) => id !== chat.id);
    while (others.length >= MOST) await this.remove(others.pop().id);
    if (await this.#vault.put(START + chat.id, chat)) return true;
    const short = withoutTokens(chat); // log-probabilities are the first to go
    while (!(await this.#vault.put(START + chat.id, short))) {
      if (others.length === 0) return false;
      await this.remove(others.pop().id);
    }
    return true;
  }

  async remove(id) {
    this.#all.delete(id);
    await this.#vault.remove(START + id);
  }

  /** Another tab changed an entry of the browser's storage. Returns whether that was a chat of this list. */
  async changed(entry) {
    const name = this.#vault.nameOf(entry);
    if (!name?.startsWith(START)) return false;
    this.#all.delete(name.slice(START.length));
    await this.#read(name);
    return true;
  }

  async #read(name) {
    const chat = await this.#vault.get(name);
    if (chat) this.#all.set(chat.id, chat);
  }
}

/** @returns {string} a name that no other chat has */
export function newId() {
  return crypto.getRandomValues(new Uint32Array(4)).reduce((text, each) => text + each.toString(16).padStart(8, "0"), "");
}

/** The beginning of the first question. */
export function titleOf(panes) {
  const text = panes[0]?.turns[0]?.asked.at(-1)?.content.trim().replace(/\s+/g, " ") ?? "";
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH - 1)}…` : text;
}

/** A chat without the tokens of its answers. */
export function withoutTokens(chat) {
  return JSON.parse(JSON.stringify(chat), (name, value) => (name === "tokens" && Array.isArray(value) ? [] : value));
}

/**
 * A chat as a file for other programs: each column with its messages as OpenAI's chats have them.
 *
 * @param {Chat} chat
 */
export function exported({ title, created, updated, protocol, system, options, panes }) {
  const begin = system.trim() === "" ? [] : [{ role: "system", content: system }];
  const columns = panes.map(({ endpoint, entity, turns }) => ({
    endpoint,
    ...(entity && { entity }),
    messages: [...begin, ...turns.flatMap(messagesOf)],
    turns,
  }));
  return { title, created: new Date(created), updated: new Date(updated), protocol, options, columns };
}
