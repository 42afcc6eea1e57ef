/**
 * Markdown in blocks: paragraphs, headings, lists, quotes, fenced code, tables, rules.
 *
 * HTML is text. Code that is indented without a fence is a paragraph. Time grows with the length of the text.
 */

/**
 * @typedef {{type: string, source: string, text?: string, level?: number, language?: string, ordered?: boolean,
 *   start?: number, items?: Block[][], blocks?: Block[], header?: string[], rows?: string[][]}} Block
 */

const DEPTH = 8; // of lists and quotes inside each other
const COLUMNS = 50;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]{0,40})/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER_CELL = /^:?-+:?$/;
const ROW_LENGTH = 4000; // of a divider; a longer line is text

/**
 * @param {string} text
 * @param {number} [depth]
 * @returns {Block[]} `source` is the text of each block
 */
export function blocksOf(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at, depth);
    found.push({ ...block, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return found;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    return [{ type: "heading", level: heading[1].length, text: (heading[2] ?? "").replace(/[ \t]#+[ \t]*$/, "") }, at + 1];
  }
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEPTH && QUOTE.test(line)) return quoted(lines, at, depth);
  if (depth < DEPTH && ITEM.test(line)) return listed(lines, at, depth);
  if (line.includes("|") && isDivider(line, lines[at + 1])) return table(lines, at);
  return paragraph(lines, at, depth);
}

function fenced(lines, at, [, mark, language]) {
  let end = at + 1;
  const closes = (line) => {
    const trimmed = line.trim();
    return trimmed.length >= mark.length && trimmed === mark[0].repeat(trimmed.length);
  };
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return [{ type: "code", language, text }, Math.min(end + 1, lines.length)];
}

function quoted(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: blocksOf(inner.join("\n"), depth + 1) }, end];
}

function listed(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const kind = first[2].at(-1);
  const ordered = kind === "." || kind === ")";
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[2].at(-1) !== kind || RULE.test(lines[end])) break;
    const width = item[0].length + (item[3] === "" ? 1 : 0);
    const inner = [lines[end].slice(item[0].length)];
    end += 1;
    let next = afterBlanks(lines, end);
    while (next < lines.length && belongs(lines, next, width, next > end)) {
      while (end < next) inner.push(lines[end++]);
      inner.push(lines[end].slice(Math.min(width, indent(lines[end]))));
      end += 1;
      next = afterBlanks(lines, end);
    }
    items.push(blocksOf(inner.join("\n"), depth + 1));
    if (next < lines.length && ITEM.exec(lines[next])?.[2].at(-1) === kind) end = next;
  }
  return [{ type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items }, end];
}

/** Whether a line goes on with an item whose text begins at column `width`. */
function belongs(lines, at, width, behindBlanks) {
  if (indent(lines[at]) >= Math.min(width, 2)) return true;
  // A line that is not indented goes on with the paragraph right above it, but begins no block.
  return !behindBlanks && !begins(lines, at);
}

function afterBlanks(lines, at) {
  let next = at;
  while (next < lines.length && lines[next].trim() === "") next += 1;
  return next;
}

function indent(line) {
  return line.length - line.trimStart().length;
}

function table(lines, at) {
  const header = cells(lines[at]);
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") {
    const row = cells(lines[end]).slice(0, header.length);
    rows.push([...row, ...Array(header.length - row.length).fill("")]);
    end += 1;
  }
  return [{ type: "table", header, rows }, end];
}

function isDivider(header, line) {
  if (!line?.includes("-") || line.length > ROW_LENGTH || header.length > ROW_LENGTH) return false;
  const divider = cells(line);
  if (divider.length > COLUMNS || !divider.every((cell) => DIVIDER_CELL.test(cell))) return false;
  return cells(header).length === divider.length;
}

/** The cells of a row; a bar behind a backslash is text. */
function cells(line) {
  const found = [""];
  const inner = line.trim().replace(/^\|/, "");
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] === "\\" && inner[at + 1] === "|") {
      found[found.length - 1] += "|";
      at += 1;
    } else if (inner[at] === "|") found.push("");
    else found[found.length - 1] += inner[at];
  }
  if (found.length > 1 && found.at(-1).trim() === "") found.pop();
  return found.map((cell) => cell.trim());
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !begins(lines, end, depth)) end += 1;
  const text = lines
    .slice(at, end)
    .map((line) => line.trim())
    .join("\n");
  return [{ type: "paragraph", text }, end];
}

/** Whether a block other than a paragraph begins here. */
function begins(lines, at, depth = 0) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth < DEPTH && (QUOTE.test(line) || ITEM.test(line))) return true;
  return line.includes("|") && isDivider(line, lines[at + 1]);
}
