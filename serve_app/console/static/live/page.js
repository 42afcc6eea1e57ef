// The page Live: asks the API for what is new, as often as there is a new point, and shows it.

import { announce, api } from "../console.js";
import { Chart, MOST_LINES, swatch } from "./chart.js";
import { clock, number, seconds, share } from "./format.js";
import { History } from "./history.js";
import { show } from "./tables.js";

const PATH = "/api/2.0/live";
const QUANTILES = ["p50", "p95", "p99"];
const FORMATS = { number, seconds, share };
const RETRY_S = 4;
const STALE_S = 15; // since the newest point; a point settles some seconds after its time

const part = (id) => document.getElementById(id);
const controls = {
  endpoint: part("endpoint"),
  span: part("span"),
  quantile: part("quantile"),
  pause: part("pause"),
};
const figures = [...document.querySelectorAll("figure[data-figure]")].map((element) => ({
  element,
  figure: element.dataset.figure,
  ofApplications: element.dataset.of === "applications",
  chart: new Chart(element, FORMATS[element.dataset.format]),
}));

let history = new History();
let turn = 0; // changes when what is under way is not wanted any more
let timer = null;
let isPaused = false;

function query() {
  const given = { window: controls.span.value };
  if (controls.endpoint.value) given.endpoint = controls.endpoint.value;
  if (history.last !== null) given.since = history.last;
  return new URLSearchParams(given);
}

/** The answer, or an Error with the API's own words. */
async function ask() {
  const answer = await api(`${PATH}?${query()}`);
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.message ?? `the server answered ${answer.status}`);
  return body;
}

async function poll() {
  clearTimeout(timer);
  if (isPaused || document.hidden) return;
  const mine = ++turn;
  let waitS = RETRY_S;
  try {
    let answer = await ask();
    if (mine !== turn) return;
    if (!history.take(answer)) {
      history = new History();
      answer = await ask();
      if (mine !== turn) return;
      history.take(answer);
    }
    waitS = answer.slot_s;
    told("");
    draw();
  } catch (error) {
    if (mine !== turn) return;
    told(error.message);
  }
  showState();
  timer = setTimeout(poll, waitS * 1000);
}

/** How the figures stand: those that nothing newer followed in time are shown as old. */
function showState() {
  const age = history.last === null ? 0 : Date.now() / 1000 - history.last;
  const isStale = !isPaused && (!part("problem").hidden || age > STALE_S);
  const [word, tone] = isPaused ? ["paused", "warn"] : isStale ? ["stale", "bad"] : ["live", "good"];
  part("state").textContent = word;
  part("state").className = `badge ${tone}`;
  for (const each of document.querySelectorAll("[data-live]")) each.classList.toggle("stale", isStale);
}

function told(problem) {
  const box = part("problem");
  box.hidden = !problem;
  if (box.textContent !== problem) box.textContent = problem;
}

/** The lines of a picture of requests: the entities of one endpoint, or the busiest endpoints. */
function tracks() {
  const { endpoints } = history.answer;
  if (controls.endpoint.value) {
    return endpoints.flatMap((endpoint) =>
      endpoint.entities.map((entity) => ({
        key: `entity/${endpoint.endpoint}/${entity.entity}`,
        name: entity.entity,
        window: entity.window,
      })),
    );
  }
  return endpoints.map((endpoint) => ({
    key: `endpoint/${endpoint.endpoint}`,
    name: endpoint.endpoint,
    href: `?endpoint=${encodeURIComponent(endpoint.endpoint)}`,
    window: endpoint.window,
  }));
}

function busiest(all) {
  if (all.length <= MOST_LINES) return all;
  const sum = (track) => history.values(track.key, "requests_per_s").reduce((total, value) => total + value, 0);
  const order = new Map(all.map((track) => [track, sum(track)]));
  const first = new Set([...all].sort((a, b) => order.get(b) - order.get(a)).slice(0, MOST_LINES));
  return all.filter((track) => first.has(track));
}

function draw() {
  const { answer } = history;
  const all = tracks();
  const drawn = busiest(all);
  const apps = answer.applications.map((app) => ({
    key: `application/${app.application}`,
    name: app.application,
  }));
  const drawnApps = apps.slice(0, MOST_LINES);
  const place = new Map([...drawn, ...drawnApps].map(({ key }) => [key, 0]));
  for (const some of [drawn, drawnApps]) some.forEach(({ key }, index) => place.set(key, index));
  const mark = (key) => (place.has(key) ? swatch(place.get(key)) : undefined);

  const rows = all.map((track) => ({ ...track, swatch: mark(track.key), cells: cells(track.window) }));
  if (controls.endpoint.value && all.length > 1) {
    rows.push({ key: "all", name: "all", cells: cells(answer.endpoints[0].window) });
  }
  show(part("figures"), rows);
  show(part("applications"), answer.applications.map((app, index) => ({
    key: apps[index].key,
    name: app.application,
    swatch: mark(apps[index].key),
    cells: [number(app.replicas), number(app.running), number(app.waiting), share(app.kv_use)],
  })));
  for (const { figure, ofApplications, chart } of figures) {
    const name = figure.endsWith("_s") && !figure.endsWith("_per_s") ? `${figure}.${controls.quantile.value}` : figure;
    const lines = (ofApplications ? drawnApps : drawn).map((track) => ({
      name: track.name,
      values: history.values(track.key, name),
    }));
    chart.draw(history.times, lines, Number(controls.span.value));
  }
  options(answer);
  part("more").hidden = all.length === drawn.length;
  part("quiet").hidden = all.length === 0 || !history.isQuiet;
  part("none").hidden = all.length > 0;
  part("one").hidden = answer.gateways === "all";
  part("as-of").textContent = history.last === null ? "" : `until ${clock(history.last)}`;
}

function cells(window) {
  const rates = ["requests_per_s", "errors_per_s", "refused_per_s", "prompt_tokens_per_s", "tokens_per_s", "in_flight"];
  const latencies = ["first_token_s", "inter_token_s"];
  return [
    ...rates.map((name) => number(window[name])),
    ...latencies.flatMap((name) => QUANTILES.map((quantile) => seconds(window[name][quantile]))),
  ];
}

/** Endpoints come and go; the choice keeps those of the newest answer about all of them. */
function options(answer) {
  if (controls.endpoint.value) return;
  const names = answer.endpoints.map((endpoint) => endpoint.endpoint);
  const there = [...controls.endpoint.options].slice(1).map((option) => option.value);
  if (names.join("\n") === there.join("\n")) return;
  controls.endpoint.length = 1;
  for (const name of names) controls.endpoint.add(new Option(name, name));
}

function again() {
  turn += 1;
  history = new History();
  poll();
}

controls.endpoint.addEventListener("change", () => {
  const name = controls.endpoint.value;
  window.history.replaceState(null, "", name ? `?endpoint=${encodeURIComponent(name)}` : location.pathname);
  again();
});
controls.span.addEventListener("change", again);
controls.quantile.addEventListener("change", () => history.answer && draw());
controls.pause.addEventListener("click", () => {
  isPaused = !isPaused;
  controls.pause.textContent = isPaused ? "Resume" : "Pause";
  announce(isPaused ? "paused" : "live again");
  showState();
  if (!isPaused) poll();
});
document.addEventListener("visibilitychange", poll);
setInterval(showState, 1000);
poll();
