// The points of five minutes, put together from answers of the API that each bring a few new ones.

const KEPT = 150;

/** `{a: [1], b: {p50: [2]}}` as `{"a": [1], "b.p50": [2]}`. */
function columns(series) {
  const found = {};
  for (const [name, values] of Object.entries(series)) {
    if (Array.isArray(values)) found[name] = values;
    else for (const [part, each] of Object.entries(values)) found[`${name}.${part}`] = each;
  }
  return found;
}

/** One named series of an answer: an endpoint, an entity or an application. */
class Track {
  constructor(length) {
    this.length = length; // points that were there before it
    this.values = {};
  }

  add(series) {
    for (const [name, values] of Object.entries(columns(series))) {
      this.values[name] ??= new Array(this.length).fill(null);
      this.values[name].push(...values);
    }
  }

  cut(count) {
    for (const values of Object.values(this.values)) values.splice(0, count);
  }
}

/** What the API told, newest answer last. */
export class History {
  times = [];
  answer = null; // the newest
  #tracks = new Map();

  /** The last moment that is known; null: none. */
  get last() {
    return this.times.at(-1) ?? null;
  }

  /** Take an answer to `since=last`. False: it does not continue what is here, so all is to be asked anew. */
  take(answer) {
    const before = this.answer;
    if (before !== null && before.gateways !== answer.gateways) return false;
    if (this.last !== null && answer.times.length && answer.times[0] - this.last > 1.5 * answer.slot_s) {
      return false;
    }
    const named = [];
    for (const endpoint of answer.endpoints) {
      named.push([`endpoint/${endpoint.endpoint}`, endpoint.series]);
      for (const entity of endpoint.entities) {
        named.push([`entity/${endpoint.endpoint}/${entity.entity}`, entity.series]);
      }
    }
    for (const app of answer.applications) named.push([`application/${app.application}`, app.series]);
    const tracks = new Map();
    for (const [key, series] of named) {
      const track = this.#tracks.get(key) ?? new Track(this.times.length);
      track.add(series);
      tracks.set(key, track);
    }
    this.#tracks = tracks; // what the answer does not name any more is gone
    this.times.push(...answer.times);
    const old = Math.max(0, this.times.length - KEPT);
    this.times.splice(0, old);
    for (const track of tracks.values()) {
      track.cut(old);
      track.length = this.times.length;
    }
    this.answer = answer;
    return true;
  }

  /** The values of one figure, one for each of `times`: `values("endpoint/chat", "first_token_s.p95")`. */
  values(key, figure) {
    return this.#tracks.get(key)?.values[figure] ?? new Array(this.times.length).fill(null);
  }

  /** Whether something was ever under way or answered. */
  get isQuiet() {
    const figures = ["requests_per_s", "in_flight", "tokens_per_s"];
    return this.answer.endpoints.every((endpoint) =>
      figures.every((figure) => this.values(`endpoint/${endpoint.endpoint}`, figure).every((value) => !value)),
    );
  }
}
