/**
 * Markdown that still grows, shown as elements that are made one by one.
 *
 * No text of a model is ever parsed as HTML, no image is loaded, and a link is only followed by a click.
 */

import { blocksOf } from "./blocks.js";
import { inlineOf } from "./inline.js";
import { copyButton, element } from "./elements.js";

/** The view of one text. Blocks that did not change keep their elements. */
export class MarkdownView {
  /** @type {{source: string, node: Node}[]} */
  #shown = [];
  #container;

  /** @param {HTMLElement} container is empty, and becomes this view's own */
  constructor(container) {
    this.#container = container;
  }

  /** @param {string} text all of it */
  update(text) {
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && this.#shown[same]?.source === blocks[same].source) same += 1;
    for (const { node } of this.#shown.splice(same)) node.remove();
    for (const block of blocks.slice(same)) {
      const node = shown(block);
      this.#container.append(node);
      this.#shown.push({ source: block.source, node });
    }
  }
}

/** @param {import("./blocks.js").Block} block */
function shown(block) {
  switch (block.type) {
    case "heading":
      // A page has its own headings above an answer's.
      return element(`h${Math.min(block.level + 3, 6)}`, {}, ...inline(block.text));
    case "rule":
      return element("hr");
    case "code":
      return code(block);
    case "quote":
      return element("blockquote", {}, ...block.blocks.map(shown));
    case "list": {
      const list = element(block.ordered ? "ol" : "ul", {}, ...block.items.map(item));
      if (block.ordered && block.start !== 1) list.start = block.start;
      return list;
    }
    case "table":
      return table(block);
    default:
      return element("p", {}, ...inline(block.text));
  }
}

/** An item of a single paragraph has no paragraph around its text. */
function item(blocks) {
  const [first, ...rest] = blocks;
  if (first?.type !== "paragraph") return element("li", {}, ...blocks.map(shown));
  return element("li", {}, ...inline(first.text), ...rest.map(shown));
}

function code(block) {
  const text = element("code", {}, block.text);
  const bar = element("div", { class: "code-bar" }, element("span", {}, block.language || "text"));
  bar.append(copyButton("Copy code", () => block.text));
  const body = element("pre", { tabindex: "0", "aria-label": `Code, ${block.language || "text"}` }, text);
  return element("div", { class: "code-block" }, bar, body);
}

function table(block) {
  const cell = (name) => (text) => element(name, name === "th" ? { scope: "col" } : {}, ...inline(text));
  const head = element("thead", {}, element("tr", {}, ...block.header.map(cell("th"))));
  const rows = block.rows.map((row) => element("tr", {}, ...row.map(cell("td"))));
  const whole = element("table", {}, head, element("tbody", {}, ...rows));
  return element("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table" }, whole);
}

function inline(text) {
  return inlineOf(text).map(node);
}

/** @param {import("./inline.js").Inline} each */
function node(each) {
  if (each.type === "text") return document.createTextNode(each.text);
  if (each.type === "code") return element("code", {}, each.text);
  const children = each.children.map(node);
  if (each.type !== "link") return element(each.type, {}, ...children);
  const link = { href: each.href, title: each.href, rel: "noopener noreferrer nofollow", target: "_blank" };
  return element("a", link, ...children);
}
