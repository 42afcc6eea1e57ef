/** JSON with whole numbers of any size: a seed of 64 bits is more than a JavaScript number holds. */

/**
 * @param {any} value may hold BigInt
 * @param {number} [indent]
 * @returns {string}
 */
export function toJson(value, indent = 0) {
  // Pages over plain HTTP have no `randomUUID`.
  const mark = `bigint-${crypto.getRandomValues(new Uint32Array(4)).join("-")}:`;
  const marked = (_, each) => (typeof each === "bigint" ? mark + each.toString() : each);
  const text = JSON.stringify(value, marked, indent);
  return text.replace(new RegExp(`"${mark}(-?[0-9]+)"`, "g"), "$1");
}

/**
 * A whole number as text becomes a number that loses no digit.
 *
 * @param {string} text such as "-12"
 * @returns {number | bigint}
 */
export function wholeNumber(text) {
  const number = Number(text);
  return Number.isSafeInteger(number) ? number : BigInt(text);
}
