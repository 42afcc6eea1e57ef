/** Elements made of names, attributes and children. A string child is text, never markup. */

/**
 * @param {string} name
 * @param {Record<string, string>} [attributes]
 * @param {...(Node | string)} children
 * @returns {any} the element
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * A button that copies a text, and says that it did.
 *
 * @param {string} label
 * @param {() => string} text
 */
export function copyButton(label, text) {
  const button = element("button", { type: "button", class: "small quiet" }, label);
  button.addEventListener("click", async () => {
    const copied = await copy(text());
    button.textContent = copied ? "Copied" : "Not copied: select the text instead";
    setTimeout(() => (button.textContent = label), 2000);
  });
  return button;
}

/** Whether `text` is in the clipboard now. Plain HTTP has no clipboard but the one of a selection. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
