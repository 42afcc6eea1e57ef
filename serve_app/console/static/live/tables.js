// Tables whose rows stay the same elements while their figures change, so that a focus is not lost.

function cell(row, kind, className) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (kind === "th") made.scope = "row";
  row.append(made);
  return made;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A row's first cell: the colour of its line, and its name, which may be a link. */
function head(row, { name, href, swatch }) {
  const made = cell(row, "th");
  const mark = document.createElement("span");
  mark.className = swatch ?? "";
  mark.setAttribute("aria-hidden", "true");
  const label = document.createElement(href ? "a" : "span");
  if (href) label.href = href;
  label.textContent = name;
  made.append(mark, label);
}

/** Make the body of `table` show `rows`: `[{key, name, href, swatch, cells: ["1", "2"]}]`. */
export function show(table, rows) {
  const body = table.tBodies[0];
  const kept = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.forEach((row, place) => {
    let element = kept.get(row.key);
    if (!element) {
      element = document.createElement("tr");
      element.dataset.key = row.key;
      head(element, row);
      for (const _ of row.cells) cell(element, "td", "n");
    }
    kept.delete(row.key);
    element.querySelector("th > span:first-child").className = row.swatch ?? "";
    row.cells.forEach((text, index) => set(element.cells[index + 1], text));
    if (body.rows[place] !== element) body.insertBefore(element, body.rows[place] ?? null);
  });
  for (const row of kept.values()) row.remove();
}
