/** What the tab keeps while it is open: the chat that is shown, and what is typed. It ends with the tab. */

import { withoutTokens } from "./chat_storage.js";

const KEY = "serve-app-playground";
const VERSION = 2;

/**
 * @param {string} owner the API key whose it is, by the name of its vault
 * @param {any} state what JSON can hold
 */
export function save(owner, state) {
  const whole = { version: VERSION, owner, ...state };
  // The tab's storage may be full: log-probabilities are the first to go.
  if (!put(whole)) put(withoutTokens(whole));
}

function put(state) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(state));
    return true;
  } catch {
    return false;
  }
}

/** @returns {any} what was saved for this owner, or null */
export function load(owner) {
  try {
    const state = JSON.parse(sessionStorage.getItem(KEY) ?? "null");
    return state?.version === VERSION && state.owner === owner ? state : null;
  } catch {
    return null;
  }
}
