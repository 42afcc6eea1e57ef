/**
 * What this browser keeps for one API key: named JSON values, encrypted so that whoever signs in with another
 * key cannot read them. Knows nothing of chats.
 *
 * A page that came neither over TLS nor from this machine has no encryption; its values end with the tab.
 */

const PREFIX = "serve-app-vault";
const NONCE_BYTES = 12;
const CHUNK = 8192; // bytes of one call; an argument list is bounded

export class Vault {
  #prefix;
  #key;
  #store;
  #last = Promise.resolve(); // writes are in the order in which they were asked for

  constructor(prefix, key, store) {
    this.#prefix = prefix;
    this.#key = key;
    this.#store = store;
  }

  /**
   * @param {string} owner names the API key
   * @param {string} secret base64 of 32 bytes
   * @returns {Promise<Vault>}
   */
  static async open(owner, secret) {
    const prefix = `${PREFIX}:${owner}:`;
    if (!crypto.subtle) return new Vault(prefix, null, sessionStorage);
    const key = await crypto.subtle.importKey("raw", bytesOf(secret), "AES-GCM", false, ["encrypt", "decrypt"]);
    return new Vault(prefix, key, localStorage);
  }

  /** Whether values outlive the tab. */
  get isLasting() {
    return this.#key !== null;
  }

  /** The name of the value whose entry in the browser's storage is `entry`; null if it is not of this vault. */
  nameOf(entry) {
    return entry?.startsWith(this.#prefix) ? entry.slice(this.#prefix.length) : null;
  }

  /** @returns {string[]} the names that begin with `start` */
  names(start) {
    const names = Object.keys(this.#store).map((entry) => this.nameOf(entry));
    return names.filter((name) => name?.startsWith(start));
  }

  /** @returns {Promise<any>} the value; null if there is none that can be read */
  async get(name) {
    const text = this.#store.getItem(this.#prefix + name);
    if (text === null) return null;
    try {
      return JSON.parse(this.#key ? await this.#opened(text) : text);
    } catch {
      return null; // encrypted with another secret, or changed
    }
  }

  /**
   * @param {string} name
   * @param {any} value
   * @returns {Promise<boolean>} false if there is no room for it
   */
  put(name, value) {
    const text = JSON.stringify(value);
    return this.#inTurn(async () => {
      try {
        this.#store.setItem(this.#prefix + name, this.#key ? await this.#sealed(text) : text);
        return true;
      } catch {
        return false;
      }
    });
  }

  /** @returns {Promise<void>} */
  remove(name) {
    return this.#inTurn(async () => this.#store.removeItem(this.#prefix + name));
  }

  #inTurn(work) {
    return (this.#last = this.#last.then(work));
  }

  async #sealed(text) {
    const nonce = crypto.getRandomValues(new Uint8Array(NONCE_BYTES));
    const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv: nonce }, this.#key, new TextEncoder().encode(text));
    return textOf(nonce) + textOf(new Uint8Array(sealed));
  }

  async #opened(text) {
    const length = (NONCE_BYTES / 3) * 4; // of base64
    const iv = bytesOf(text.slice(0, length));
    const opened = await crypto.subtle.decrypt({ name: "AES-GCM", iv }, this.#key, bytesOf(text.slice(length)));
    return new TextDecoder().decode(opened);
  }
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function textOf(bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += CHUNK) binary += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  return btoa(binary);
}
