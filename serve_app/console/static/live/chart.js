// One picture: a line for each name, over the last minutes. The table beside it has the numbers as text.

import uPlot from "../vendor/uplot-1.6.32.esm.js";
import { clock } from "./format.js";

const HEIGHT = 150;
const COLOURS = 4;
const DASHES = [undefined, [6, 4]];
export const MOST_LINES = COLOURS * DASHES.length;

/** The class of the colour of line `place`, in the table as in the picture. */
export function swatch(place) {
  return `swatch swatch-${(place % COLOURS) + 1}${place >= COLOURS ? " swatch-dashed" : ""}`;
}

/** The colour that the variable `name` has in the theme that is shown, as a canvas understands it. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** An entry of a legend. */
function labelled(mark, text) {
  const entry = document.createElement("span");
  if (mark) entry.append(Object.assign(document.createElement("span"), { className: mark }));
  entry.append(text);
  return entry;
}

export class Chart {
  #box;
  #readout;
  #format;
  #plot = null;
  #names = null; // of the lines of `#plot`
  #lines = [];
  #times = [];
  #span = [0, 1];

  /** `figure` is the element: a caption with `.readout`, and `.plot`. `format` writes a value. */
  constructor(figure, format) {
    this.#box = figure.querySelector(".plot");
    this.#readout = figure.querySelector(".readout");
    this.#format = format;
    new ResizeObserver(() => this.#fit()).observe(this.#box);
    document.addEventListener("theme", () => this.#forget());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#forget());
  }

  /** `lines`: `[{name, values}]`, a value for each of `times`. `spanS`: seconds that are shown. */
  draw(times, lines, spanS) {
    this.#times = times;
    this.#lines = lines;
    const last = times.at(-1) ?? Date.now() / 1000;
    this.#span = [last - spanS, last];
    const names = JSON.stringify(lines.map((line) => line.name));
    if (names !== this.#names) this.#forget(names);
    else this.#plot.setData(this.#data());
    this.#read(null);
  }

  #data() {
    return [this.#times, ...this.#lines.map((line) => line.values)];
  }

  #forget(names = this.#names) {
    if (names === null) return;
    this.#plot?.destroy();
    this.#names = names;
    this.#plot = new uPlot(this.#options(), this.#data(), this.#box);
  }

  #fit() {
    const width = this.#box.clientWidth;
    if (this.#plot && width) this.#plot.setSize({ width, height: HEIGHT });
  }

  #read(place) {
    const at = place ?? this.#times.length - 1;
    const time = place === null || !this.#times.length ? [] : [labelled("", clock(this.#times[at]))];
    const lines = this.#lines.map((line, index) => labelled(swatch(index), `${line.name} ${this.#format(line.values[at])}`));
    this.#readout.replaceChildren(...time, ...lines);
  }

  #options() {
    const axis = {
      stroke: colour("--muted"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1, size: 4 },
    };
    return {
      width: this.#box.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "live" } },
      scales: {
        x: { time: true, range: () => this.#span },
        y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] },
      },
      axes: [
        { ...axis, size: 26, space: 60, values: (_, marks) => marks.map(clock) },
        { ...axis, size: 58, space: 28, values: (_, marks) => marks.map((value) => this.#format(value)) },
      ],
      series: [
        {},
        ...this.#lines.map((line, place) => ({
          label: line.name,
          stroke: colour(`--series-${(place % COLOURS) + 1}`),
          dash: DASHES[Math.floor(place / COLOURS) % DASHES.length],
          width: 1.75,
        })),
      ],
      hooks: { setCursor: [(plot) => this.#read(plot.cursor.idx ?? null)] },
    };
  }
}
