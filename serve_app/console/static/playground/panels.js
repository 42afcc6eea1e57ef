/** The columns beside the chat: both there on a wide page; on a narrow one, each over the chat when it is asked for. */

const WIDE = matchMedia("(min-width: 1000px)");

const buttons = [...document.querySelectorAll("[data-panel]")];

function panelOf(button) {
  return document.getElementById(button.dataset.panel);
}

function show(isShown) {
  for (const button of buttons) {
    const panel = panelOf(button);
    panel.hidden = !isShown(panel);
    button.setAttribute("aria-expanded", String(!panel.hidden));
  }
}

/** On a narrow page no column is over the chat any more. */
export function closePanels() {
  if (!WIDE.matches) show(() => false);
}

/** Whether a column is over the chat. */
export function coversChat() {
  return !WIDE.matches && buttons.some((button) => !panelOf(button).hidden);
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    const pressed = panelOf(button);
    show((panel) => (panel === pressed ? panel.hidden : WIDE.matches && !panel.hidden));
  });
}
WIDE.addEventListener("change", () => show(() => WIDE.matches));
show(() => WIDE.matches);
