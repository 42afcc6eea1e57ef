// What every page has: the theme's switch, words for screen readers, and calls of the public API.

const THEME = "serve-app-theme";

/** The theme that is shown now: "light" or "dark". */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Announce `text` to screen readers. */
export function announce(text) {
  document.getElementById("announcements").textContent = text;
}

/** `fetch` of the public API with this session's key: `api("/v1/models")`, `api("/v1/completions", {method: "POST", body})`. */
export function api(path, { method = "GET", body, headers = {}, signal } = {}) {
  const token = document.querySelector('meta[name="csrf-token"]').content;
  const json = body === undefined ? {} : { "content-type": "application/json" };
  return fetch(`/console/api${path}`, {
    method,
    signal,
    headers: { ...json, ...headers, "x-csrf-token": token },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

for (const button of document.querySelectorAll("[data-theme-toggle]")) {
  button.addEventListener("click", () => {
    const next = theme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem(THEME, next);
    document.dispatchEvent(new CustomEvent("theme", { detail: next }));
    announce(`${next} theme`);
  });
}

// What this tab keeps belongs to the person who signs out.
document.querySelector("[data-sign-out]")?.addEventListener("submit", () => {
  document.dispatchEvent(new CustomEvent("sign-out"));
  sessionStorage.clear();
});

// A button with `data-copy="#id"` puts that element's text on the clipboard.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent);
  announce("copied");
  button.dataset.done = "";
  setTimeout(() => delete button.dataset.done, 1500);
});
