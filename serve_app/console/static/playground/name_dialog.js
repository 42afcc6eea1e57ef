/** A dialog that asks for one name. */

const dialog = document.getElementById("name");
const field = document.getElementById("name-text");

dialog?.querySelector("[data-part=cancel]").addEventListener("click", () => dialog.close(""));

/**
 * @param {string} label what the name is of
 * @param {string} name at first
 * @returns {Promise<string>} nothing if the dialog was left without a name
 */
export function askName(label, name = "") {
  document.getElementById("name-label").textContent = label;
  field.value = name;
  dialog.returnValue = "";
  dialog.showModal();
  field.select();
  return new Promise((done) => {
    const end = () => done(dialog.returnValue === "save" ? field.value.trim() : "");
    dialog.addEventListener("close", end, { once: true });
  });
}
