// Forms of entities: rows come and go, and the shares of a split must add up to 100.

const WHOLE = 100;

/** The inputs of one form that hold a share. */
function shares(form) {
  return [...form.querySelectorAll('input[name="share"], input[name$=".traffic_percentage"]')];
}

/** Say what the shares add up to, and let a split be sent only where that is 100. */
function check(form) {
  const inputs = shares(form);
  const total = inputs.reduce((sum, input) => sum + (Number(input.value) || 0), 0);
  const isSplit = inputs.length > 1;
  const isWrong = isSplit && total !== WHOLE;
  const output = form.querySelector("[data-total]");
  output.textContent = isSplit ? `The shares add up to ${total} %${isWrong ? `; they must add up to ${WHOLE} %` : ""}.` : "";
  output.toggleAttribute("data-wrong", isWrong);
  form.querySelector("[data-submit]").disabled = isWrong;
}

/** Number the rows as people count them; the last one cannot be taken away. */
function number(form) {
  const rows = [...form.querySelectorAll("[data-entity]")];
  rows.forEach((row, index) => {
    row.querySelector("[data-number]").textContent = String(index + 1);
    row.querySelector("[data-remove-entity]").hidden = rows.length === 1;
  });
}

/** Append an empty row whose fields have a number that no other row has. */
function add(form) {
  const list = form.querySelector("[data-entities]");
  const index = Number(list.dataset.next);
  list.dataset.next = String(index + 1);
  const row = form.querySelector("[data-blank-entity]").content.firstElementChild.cloneNode(true);
  for (const element of row.querySelectorAll("*")) {
    for (const name of ["id", "name", "for", "aria-describedby"]) {
      const value = element.getAttribute(name);
      if (value) element.setAttribute(name, value.replace(/^served_entities\.\d+\./, `served_entities.${index}.`));
    }
  }
  list.append(row);
  row.querySelector('input[name$=".entity_name"]').focus();
}

function refresh(form) {
  if (form.querySelector("[data-entities]")) number(form);
  check(form);
}

document.addEventListener("click", (event) => {
  const form = event.target.closest?.("[data-split]");
  if (!form) return;
  if (event.target.closest("[data-add-entity]")) add(form);
  else if (event.target.closest("[data-remove-entity]")) event.target.closest("[data-entity]").remove();
  else return;
  refresh(form);
});

document.addEventListener("input", (event) => {
  const form = event.target.closest?.("[data-split]");
  if (form) check(form);
});

// A part of the page that htmx replaced may have brought a form with it.
document.addEventListener("htmx:afterSettle", () => document.querySelectorAll("[data-split]").forEach(refresh));
document.querySelectorAll("[data-split]").forEach(refresh);
