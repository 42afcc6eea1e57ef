/** The list of chats: opens one, renames, exports and deletes the one that is open. */

import { exported } from "./chat_storage.js";
import { toJson } from "./json_text.js";
import { askName } from "./name_dialog.js";

export class ChatList {
  #chats;
  #list = document.getElementById("chat-list");
  #template = document.getElementById("chat");
  #on;
  #isBusy = false;
  #current = "";

  /**
   * @param {import("./chat_storage.js").Chats} chats
   * @param {{open: (chat: import("./chat_storage.js").Chat) => void, deleted: (id: string) => void,
   *   renamed: (id: string, title: string) => void}} on
   */
  constructor(chats, on) {
    this.#chats = chats;
    this.#on = on;
  }

  /** @param {string} current id of the chat that is open */
  show(current = this.#current, isBusy = this.#isBusy) {
    this.#current = current;
    this.#isBusy = isBusy;
    const { list } = this.#chats;
    document.getElementById("no-chats").hidden = list.length > 0;
    const focused = this.#list.contains(document.activeElement) ? document.activeElement.dataset : null;
    this.#list.replaceChildren(...list.map((chat) => this.#row(chat)));
    if (focused) this.#list.querySelector(`[data-chat="${focused.chat}"][data-part=${focused.part}]`)?.focus();
  }

  #row(chat) {
    const row = this.#template.content.firstElementChild.cloneNode(true);
    const part = (name) => row.querySelector(`[data-part=${name}]`);
    for (const button of row.querySelectorAll("button")) button.dataset.chat = chat.id;
    const open = part("open");
    open.textContent = chat.title;
    open.title = new Date(chat.updated).toLocaleString();
    open.disabled = this.#isBusy;
    open.addEventListener("click", () => this.#on.open(chat));
    const isCurrent = chat.id === this.#current;
    if (isCurrent) open.setAttribute("aria-current", "true");
    row.querySelector(".chat-actions").hidden = !isCurrent;
    part("rename").addEventListener("click", () => this.#rename(chat.id));
    part("export").addEventListener("click", () => download(chat));
    part("delete").disabled = this.#isBusy;
    part("delete").addEventListener("click", (event) => this.#delete(event.target, chat.id));
    return row;
  }

  async #rename(id) {
    const title = await askName("Name of the chat", this.#chats.get(id)?.title);
    if (title !== "") this.#on.renamed(id, title);
  }

  /** At the second press: the first one asks whether it is meant. */
  async #delete(button, id) {
    if (button.dataset.asked === undefined) {
      button.dataset.asked = "";
      button.textContent = "Really delete";
      const reset = () => {
        delete button.dataset.asked;
        button.textContent = "Delete";
      };
      button.addEventListener("blur", reset, { once: true });
      return;
    }
    await this.#chats.remove(id);
    this.#on.deleted(id);
  }
}

/** Saves a chat as a file. */
function download(chat) {
  const url = URL.createObjectURL(new Blob([toJson(exported(chat), 2)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `${chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat"}.json`;
  link.click();
  URL.revokeObjectURL(url);
}
