/** What a person writes: the text, which key sends it, and what the tab says of it. */

const ENTER = "serve-app-enter"; // of this browser, whoever signs in
const MODIFIERS = ["ctrlKey", "metaKey", "shiftKey", "altKey"];

export class Composer {
  #prompt = document.getElementById("prompt");
  #enter = document.getElementById("enter-sends");
  #send;

  /** @param {() => void} send */
  constructor(send) {
    this.#send = send;
    // The keyboard of a phone has no Shift with Enter.
    const chosen = localStorage.getItem(ENTER) ?? (matchMedia("(pointer: coarse)").matches ? "breaks" : "sends");
    this.#enter.checked = chosen === "sends";
    this.#enter.addEventListener("change", () => {
      localStorage.setItem(ENTER, this.#enter.checked ? "sends" : "breaks");
      this.#explain();
    });
    this.#explain();
    this.#prompt.addEventListener("keydown", (event) => this.#key(event));
  }

  get text() {
    return this.#prompt.value;
  }

  set text(text) {
    this.#prompt.value = text;
  }

  focus() {
    this.#prompt.focus();
  }

  /** @param {boolean} isChat whether the text is a message; else it is what the model goes on with */
  label(isChat) {
    const label = isChat ? "Message" : "Prompt, as the model gets it";
    document.getElementById("prompt-label").textContent = label;
    this.#prompt.placeholder = label;
  }

  say(text) {
    document.getElementById("status").textContent = text;
  }

  #key(event) {
    // Enter that ends the choice of a character, as in Japanese, is no end of a message.
    const isPlain = MODIFIERS.every((name) => !event[name]) && !event.isComposing;
    if (event.key !== "Enter" || !isPlain || !this.#enter.checked) return;
    event.preventDefault();
    this.#send();
  }

  #explain() {
    const keys = this.#enter.checked ? "Shift+Enter breaks the line" : "Ctrl+Enter or ⌘+Enter sends";
    document.getElementById("keys").textContent = `${keys}, Esc stops`;
  }
}
