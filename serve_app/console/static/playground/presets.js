/** Named settings of the options, kept in the vault. A name holds in every protocol that has these options. */

import { applyValues, clearValues, valuesOf } from "./option_values.js";
import { askName } from "./name_dialog.js";

const NAME = "presets";
const MOST = 100;

export class Presets {
  #vault;
  #all = {};
  #select = document.getElementById("preset");
  #delete = document.getElementById("preset-delete");

  /**
   * @param {import("./encrypted_storage.js").Vault} vault
   * @param {(said: string) => void} changed is called when a preset was chosen, saved or deleted
   */
  constructor(vault, changed) {
    this.#vault = vault;
    this.#select.addEventListener("change", () => {
      clearValues();
      applyValues(this.#all[this.#select.value] ?? {});
      this.#show(this.#select.value);
      changed("");
    });
    document.getElementById("preset-save").addEventListener("click", async () => changed(await this.#save()));
    this.#delete.addEventListener("click", async () => {
      delete this.#all[this.#select.value];
      await this.#vault.put(NAME, this.#all);
      this.#show("");
      changed("The preset is deleted.");
    });
  }

  async load() {
    this.#all = (await this.#vault.get(NAME)) ?? {};
    this.#show("");
  }

  async #save() {
    const name = await askName("Name of the preset", this.#select.value);
    if (name === "") return "";
    if (Object.keys(this.#all).length >= MOST && !Object.hasOwn(this.#all, name)) {
      return `There are ${MOST} presets already: delete one first.`;
    }
    this.#all = { ...this.#all, [name]: valuesOf() };
    const isKept = await this.#vault.put(NAME, this.#all);
    this.#show(name);
    return isKept ? `The preset ${name} is saved.` : "This browser has no room for the preset.";
  }

  #show(chosen) {
    const names = Object.keys(this.#all).sort((a, b) => a.localeCompare(b));
    this.#select.replaceChildren(new Option("Defaults", ""), ...names.map((name) => new Option(name, name)));
    this.#select.value = chosen;
    this.#delete.hidden = chosen === "";
  }
}
