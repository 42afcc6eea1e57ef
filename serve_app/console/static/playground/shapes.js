/**
 * A conversation, its tools and the form of its answer, as each shape of chats writes them. Knows no page.
 *
 * The page keeps a conversation as chats have it, tools and choice as tools.js reads them, and the form as
 * options.js does.
 */

/**
 * @typedef {"chat" | "messages" | "responses"} Shape
 * @typedef {{role: string, content: string, tool_calls?: any[], tool_call_id?: string}} Message
 * @typedef {import("./tools.js").Said} Said
 */

/** @type {Record<Shape, string>} where the form of an answer stands */
const FORMS = { chat: "response_format", messages: "output_config.format", responses: "text.format" };

export const SHAPES = Object.keys(FORMS);

/**
 * The members that differ between shapes, by dotted path.
 *
 * @param {Shape} shape
 * @param {Message[]} messages
 * @param {Said} said
 * @returns {Record<string, any>}
 */
export function written(shape, messages, { tools, choice, form }) {
  const found = PROMPTS[shape](messages);
  if (tools) found.tools = tools.map(TOOLS[shape]);
  const chosen = choice && (choice.raw === undefined ? CHOICES[shape](choice) : rawFor(shape, choice));
  if (chosen !== undefined) found.tool_choice = chosen;
  const formed = form && (form.raw === undefined ? FORMATS[shape](form) : rawFor(shape, form));
  if (formed !== undefined) found[FORMS[shape]] = formed;
  return found;
}

/** What only one shape has is no member of another one. */
function rawFor(shape, said) {
  return said.shape === shape ? said.raw : undefined;
}

const PROMPTS = { chat: (messages) => ({ messages }), messages: asTurns, responses: asItems };

const TOOLS = {
  chat: (tool) => ({ type: "function", function: tool }),
  messages: ({ name, parameters, ...rest }) => ({ name, ...rest, input_schema: parameters ?? { type: "object" } }),
  responses: (tool) => ({ type: "function", ...tool }),
};

const CHOICES = {
  chat: ({ word, name }) => word ?? { type: "function", function: { name } },
  messages: ({ word, name }) => (word ? { type: word === "required" ? "any" : word } : { type: "tool", name }),
  responses: ({ word, name }) => word ?? { type: "function", name },
};

const FORMATS = {
  chat: ({ schema, strict }) =>
    schema === undefined ? { type: "json_object" } : { type: "json_schema", json_schema: { name: "answer", schema, ...strict } },
  messages: ({ schema }) => ({ type: "json_schema", schema: schema ?? { type: "object" } }),
  responses: ({ schema, strict }) =>
    schema === undefined ? { type: "json_object" } : { type: "json_schema", name: "answer", schema, ...strict },
};

/** Anthropic's: the system beside turns that alternate; a tool's result is the user's. */
function asTurns(messages) {
  const turns = [];
  const add = (role, blocks) => {
    if (turns.at(-1)?.role === role) turns.at(-1).content.push(...blocks);
    else turns.push({ role, content: blocks });
  };
  for (const message of messages) {
    if (message.role === "tool") {
      add("user", [{ type: "tool_result", tool_use_id: message.tool_call_id, content: message.content }]);
    } else if (message.role !== "system") {
      const text = message.content === "" ? [] : [{ type: "text", text: message.content }];
      add(message.role, [...text, ...(message.tool_calls ?? []).map(asToolUse)]);
    }
  }
  for (const turn of turns) {
    if (turn.content.length === 1 && turn.content[0].type === "text") turn.content = turn.content[0].text;
  }
  return { ...(systemOf(messages) && { system: systemOf(messages) }), messages: turns };
}

function asToolUse({ id, function: { name, arguments: text } }) {
  let input = {};
  try {
    input = JSON.parse(text);
  } catch {
    // A call that was cut has no whole arguments.
  }
  return { type: "tool_use", id, name, input };
}

/** OpenAI's responses: the system beside items, among which calls and their results are. */
function asItems(messages) {
  const items = messages.flatMap(({ role, content, tool_calls: calls = [], tool_call_id: id }) => {
    if (role === "system") return [];
    if (role === "tool") return [{ type: "function_call_output", call_id: id, output: content }];
    const said = content === "" ? [] : [{ role, content }];
    return [...said, ...calls.map((call) => ({ type: "function_call", call_id: call.id, ...call.function }))];
  });
  const isText = items.length === 1 && items[0].role === "user";
  return { ...(systemOf(messages) && { instructions: systemOf(messages) }), input: isText ? items[0].content : items };
}

function systemOf(messages) {
  return messages
    .filter((message) => message.role === "system")
    .map((message) => message.content)
    .join("\n\n");
}
