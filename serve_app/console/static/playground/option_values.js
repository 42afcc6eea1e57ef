/** What was typed into the options, by the name that an option keeps in other protocols. */

/** The controls of the options with these names. */
function controls() {
  const all = document.querySelectorAll("#options :is(input, select, textarea):is([data-option], [data-path])");
  return [...all].map((control) => [control.dataset.option ?? control.dataset.path, control]);
}

/** What a control has of itself belongs to its protocol alone, and is left out. */
export function valuesOf() {
  const found = {};
  for (const [name, control] of controls()) {
    if (control.value === control.defaultValue) continue;
    const value = control.type === "checkbox" ? control.checked : control.value;
    if (value !== "" && value !== false) found[name] = value;
  }
  return found;
}

/** @param {Record<string, any>} values what a control has no value for stays as it is */
export function applyValues(values) {
  for (const [name, control] of controls()) {
    const value = values[name];
    if (value === undefined) continue;
    if (control.type === "checkbox") control.checked = value;
    else if (control.tagName !== "SELECT" || [...control.options].some((each) => each.value === value)) control.value = value;
    control.closest("details")?.setAttribute("open", "");
  }
}

/** Every option has what it has of itself again. */
export function clearValues() {
  document.getElementById("options").reset();
}

/** A button may put an example into an empty field. */
export function insertExample(button) {
  const field = button.dataset?.example && document.getElementById(button.dataset.for);
  if (!field || field.value.trim() !== "") return;
  field.value = button.dataset.example;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
