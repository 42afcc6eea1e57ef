/** The dialog with the same request as text to copy: each protocol, for curl and for Python. */

import { toJson } from "./json_text.js";

export class CodeDialog {
  #dialog;
  #csrf;
  #codes = [];

  /**
   * @param {HTMLDialogElement} dialog
   * @param {string} csrf
   */
  constructor(dialog, csrf) {
    this.#dialog = dialog;
    this.#csrf = csrf;
    for (const name of ["protocol", "language"]) this.#part(name).addEventListener("change", () => this.#show());
    this.#part("close").addEventListener("click", () => dialog.close());
    this.#part("copy").addEventListener("click", () => this.#copy());
  }

  /**
   * @param {{protocol: string, model: string, task: string, entity: string, stream: boolean, body: any,
   *   shapes: Record<string, Record<string, any>>}} asked `shapes`: what other shapes of chats write otherwise
   */
  async open(asked) {
    const body = new URLSearchParams({ request: toJson(asked) });
    const headers = { "x-csrf-token": this.#csrf };
    const answer = await fetch("/console/playground/code", { method: "POST", headers, body });
    const told = await answer.json().catch(() => ({}));
    this.#codes = told.codes ?? [];
    this.#part("problem").textContent = answer.ok ? "" : told.error ?? told.message ?? `HTTP ${answer.status}`;
    const options = this.#codes.map((code) => new Option(code.title, code.protocol));
    this.#part("protocol").replaceChildren(...options);
    this.#part("protocol").value = asked.protocol;
    this.#show();
    this.#dialog.showModal();
  }

  #show() {
    const code = this.#codes.find((each) => each.protocol === this.#part("protocol").value);
    this.#part("text").textContent = code?.[this.#part("language").value] ?? "";
    const lost = code?.lost ?? [];
    this.#part("lost").textContent = lost.length > 0 ? `This protocol does not have, or not so: ${lost.join(", ")}` : "";
  }

  async #copy() {
    const text = this.#part("text");
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    let copied = true;
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      copied = document.execCommand("copy"); // plain HTTP has no other clipboard
    }
    this.#part("copied").textContent = copied ? "Copied." : "Not copied: the text is selected.";
  }

  #part(name) {
    return this.#dialog.querySelector(`[data-part=${name}]`);
  }
}
