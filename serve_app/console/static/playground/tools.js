/**
 * Tools and the choice among them as a person writes them: in the words of any protocol, so that what is
 * copied from elsewhere can be used. Knows no page.
 */

/**
 * @typedef {{name: string, description?: string, parameters?: any, strict?: boolean}} Tool
 * @typedef {{word?: "auto" | "none" | "required", name?: string, raw?: any, shape?: string}} Choice
 * @typedef {{schema?: any, strict?: {strict: true}, raw?: any, shape?: string}} Form without a schema: any JSON object
 * @typedef {{tools?: Tool[], choice?: Choice, form?: Form}} Said
 */

const WORDS = { auto: "auto", none: "none", required: "required", any: "required" };

/**
 * @param {any} tools a list of functions as chats, responses or Anthropic's messages have them
 * @returns {Tool[] | undefined} undefined if there are none
 * @throws {Error} with a sentence about what they should be
 */
export function readTools(tools) {
  if (!Array.isArray(tools)) throw new Error("must be a list of tools");
  const found = tools.map((tool, at) => {
    const read = readTool(tool);
    if (typeof read?.name !== "string") {
      throw new Error(`tool ${at + 1} must be {"type": "function", "function": {"name": ...}}`);
    }
    return read;
  });
  return found.length > 0 ? found : undefined;
}

function readTool(tool) {
  if (tool?.type === "function") return tool.function ?? without(tool, "type");
  if (tool?.input_schema === undefined || (tool.type ?? "custom") !== "custom") return null;
  const { input_schema: parameters, ...rest } = without(tool, "type");
  return { ...rest, parameters };
}

/**
 * @param {any} value a word, or an object that names a tool, of any of the three
 * @param {string} shape whose word it is if it is none of these
 * @returns {Choice}
 */
export function readChoice(value, shape) {
  const object = typeof value === "string" ? { type: value } : (value ?? {});
  const names = Object.keys(object).sort().join(" ");
  if (names === "type" && WORDS[object.type]) return { word: WORDS[object.type] };
  if (names === "name type" && ["function", "tool"].includes(object.type)) return { name: object.name };
  if (names === "function type" && object.function?.name) return { name: object.function.name };
  return { raw: value, shape };
}

function without(object, name) {
  const { [name]: _, ...rest } = object;
  return rest;
}
