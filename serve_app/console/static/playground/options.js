/**
 * The form of options becomes members of a request's body.
 *
 * The server writes the form: a control has `data-kind`, and `data-path` says which member it is, with dots
 * between names. An empty control adds nothing, so that the protocol's own default holds.
 */

import { wholeNumber } from "./json_text.js";
import { readChoice, readTools } from "./tools.js";

/** What each shape of chats writes in its own way, by the kind of its control. */
const SAID = { tools: "tools", tool_choice: "choice", format: "form" };

/**
 * Checks every control and says at each what is wrong with it.
 *
 * @param {HTMLElement} form
 * @returns {{members: [string, any][], said: import("./tools.js").Said, wrong: HTMLElement[]}}
 */
export function readOptions(form) {
  const members = [];
  const said = {};
  const wrong = [];
  for (const control of form.querySelectorAll("[data-kind]")) {
    const { value, isRight } = checkControl(control);
    const name = SAID[control.dataset.kind];
    if (!isRight) wrong.push(control);
    else if (value !== undefined && name) said[name] = value;
    else if (value !== undefined) members.push([control.dataset.path, value]);
  }
  return { members, said, wrong };
}

/**
 * Checks one control and says beside it what is wrong.
 *
 * @param {HTMLElement} control
 * @returns {{value: any, isRight: boolean}} `value` is undefined if the control says nothing
 */
export function checkControl(control) {
  const told = control.closest("form").querySelector(`#${CSS.escape(control.id)}-problem`);
  let value;
  let message = "";
  try {
    value = readControl(control);
  } catch (error) {
    message = error.message;
  }
  control.setAttribute("aria-invalid", String(message !== ""));
  if (told) told.textContent = message && `${control.dataset.path}: ${message}`;
  return { value, isRight: message === "" };
}

/**
 * @param {any} body
 * @param {string} path such as `parameters.top_p`
 * @param {any} value
 */
export function put(body, path, value) {
  const names = path.split(".");
  const last = names.pop();
  let at = body;
  for (const name of names) at = at[name] ??= {};
  at[last] = value;
}

/**
 * What a control says, as JSON; undefined if it says nothing.
 *
 * @param {any} control
 * @throws {Error} with a sentence about what it should be
 */
export function readControl(control) {
  if (control.dataset.kind === "format") return format(control);
  const text = control.value;
  if (text.trim() === "" && !(control.dataset.kind === "text" && text !== "")) {
    if (control.validity?.badInput) throw new Error("must be a number");
    if (control.dataset.required !== undefined) throw new Error("is required");
    return undefined;
  }
  return READERS[control.dataset.kind](text, control);
}

const READERS = {
  text: (text) => text,
  choice: (text) => JSON.parse(text),
  number(text, control) {
    const { integer, above, minimum, maximum } = control.dataset;
    const value = integer !== undefined && /^-?[0-9]+$/.test(text.trim()) ? wholeNumber(text.trim()) : Number(text);
    const isWrong =
      Number.isNaN(Number(value)) ||
      (integer !== undefined && typeof value === "number" && !Number.isInteger(value)) ||
      (minimum !== undefined && (Number(value) < Number(minimum) || (above !== undefined && Number(value) <= Number(minimum)))) ||
      (maximum !== undefined && Number(value) > Number(maximum));
    if (isWrong) throw new Error(`must be ${integer === undefined ? "a number" : "a whole number"}${bounds(control.dataset)}`);
    return value;
  },
  lines(text) {
    if (text.trim().startsWith("[")) return json(text);
    return text.split("\n").filter((line) => line !== "");
  },
  numbers(text) {
    const words = text.split(/[\s,]+/).filter((word) => word !== "");
    if (!words.every((word) => /^-?[0-9]+$/.test(word))) throw new Error("must be whole numbers with commas between them");
    return words.map(wholeNumber);
  },
  json(text, control) {
    const words = (control.dataset.words ?? "").split(" ");
    return words.includes(text.trim()) ? text.trim() : json(text);
  },
  tools: (text) => readTools(json(text)),
  tool_choice(text, control) {
    const isWord = /^[a-z]+$/.test(text.trim()); // of this protocol or of another one
    return readChoice(isWord ? text.trim() : json(text), control.form?.dataset.shape);
  },
};

/** The form of the answer: a group of controls, because a schema is more than a word. */
function format(group) {
  const type = group.querySelector("[data-part=type]").value;
  const text = group.querySelector("[data-part=schema]").value;
  if (type === "") return undefined;
  if (type === "json_object") return {};
  if (text.trim() === "") throw new Error(type === "json_schema" ? "needs a JSON Schema" : "needs the form as JSON");
  const value = json(text);
  if (type !== "json_schema") return { raw: value, shape: group.form?.dataset.shape };
  const strict = group.querySelector("[data-part=strict]").checked;
  return { schema: value, strict: strict ? { strict } : {} };
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`must be JSON: ${error.message}`);
  }
}

function bounds({ minimum, maximum, above }) {
  if (minimum === undefined && maximum === undefined) return "";
  if (maximum === undefined) return above === undefined ? ` of at least ${minimum}` : ` above ${minimum}`;
  if (minimum === undefined) return ` of up to ${maximum}`;
  return above === undefined ? ` from ${minimum} to ${maximum}` : ` above ${minimum} and up to ${maximum}`;
}
