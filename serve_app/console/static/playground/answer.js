/** One answer as it grows, as data: what arrived so far, by choice. Knows no page. */

/**
 * @typedef {{text: string, reasoning: string,
 *   calls: {index: number, id: string, name: string, arguments: string, result: string}[],
 *   tokens: import("./delta.js").Token[], finish: string | null}} Choice
 */

export class Answer {
  /** @type {Choice[]} */
  choices = [];

  /** @param {Choice[]} choices */
  static of(choices) {
    const answer = new Answer();
    answer.choices.push(...choices);
    return answer;
  }

  /** @param {import("./delta.js").Delta} delta */
  add(delta) {
    while (this.choices.length <= delta.choice) this.choices.push(emptyChoice());
    const choice = this.choices[delta.choice];
    choice.text += delta.text;
    choice.reasoning += delta.reasoning;
    choice.tokens.push(...delta.tokens);
    choice.finish = delta.finish ?? choice.finish;
    for (const piece of delta.calls) addCall(choice.calls, piece);
  }

  /** The first choice as a message of the conversation; null if there is nothing to tell. */
  message() {
    const choice = this.choices[0];
    if (!choice || (choice.text === "" && choice.calls.length === 0)) return null;
    const message = { role: "assistant", content: choice.text };
    if (choice.calls.length > 0) {
      message.tool_calls = choice.calls.map((call) => ({
        id: call.id,
        type: "function",
        function: { name: call.name, arguments: call.arguments },
      }));
    }
    return message;
  }

  /** What the person says that the first choice's tools returned, as messages. */
  results() {
    const calls = this.choices[0]?.calls ?? [];
    return calls
      .filter((call) => call.result !== "")
      .map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result }));
  }
}

function emptyChoice() {
  return { text: "", reasoning: "", calls: [], tokens: [], finish: null };
}

/** A stream tells a call's id and name once and its arguments in pieces. Some number calls among other things. */
function addCall(calls, piece) {
  let call = calls.find((each) => each.index === piece.index);
  if (!call) calls.push((call = { index: piece.index, id: "", name: "", arguments: "", result: "" }));
  call.id ||= piece.id;
  call.name ||= piece.name;
  call.arguments += piece.arguments;
}

/**
 * What the conversation has of a turn. A question that got nothing but an error leaves no trace.
 *
 * @param {{asked: {role: string, content: string}[], choices: Choice[], problem: any}} turn
 */
export function messagesOf({ asked, choices, problem }) {
  const message = Answer.of(choices).message();
  if (!message) return problem ? [] : asked;
  return [...asked, message];
}
