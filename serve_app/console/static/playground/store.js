/** What the tab keeps while it is open: the conversation and the form. It ends with the tab. */

const KEY = "serve-app-playground";
const VERSION = 1;

/** @param {any} state what JSON can hold */
export function save(state) {
  const whole = JSON.stringify({ version: VERSION, ...state });
  if (put(whole)) return;
  // The tab's storage is full, or there is none: log-probabilities are the first to go.
  put(JSON.stringify(JSON.parse(whole), (name, value) => (name === "tokens" && Array.isArray(value) ? [] : value)));
}

function put(text) {
  try {
    sessionStorage.setItem(KEY, text);
    return true;
  } catch {
    return false;
  }
}

/** @returns {any} what was saved, or null */
export function load() {
  try {
    const state = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    return state?.version === VERSION ? state : null;
  } catch {
    return null;
  }
}
