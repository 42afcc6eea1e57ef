// The experts of one layer for all rows of a step, in one call.
//
// Rows are taken by expert: an expert's weights are read once, by the products of a linear layer. A row adds up its
// experts in the order of their numbers, so its result does not depend on the other rows.
#include "experts.h"

#include <algorithm>

#include "exports.h"
#include "pool.h"
#include "rowwise.h"
#include "scratch.h"

namespace {

constexpr long OWN_ROWS = 64;  // of an expert, at most, that one thread computes: more do not stay in its caches

// inner [n] of gates and ups [2 n].
void gate_row(const Experts& all, const float* gate_up, float* inner, long n) {
  const F16 most = splat(all.limit), least = splat(-all.limit);
  for (long i = 0; i < n; i += LANES) {
    const long some = std::min(LANES, n - i);
    F16 gate = load_some(gate_up + i, some), up = load_some(gate_up + n + i, some);
    if (all.limit == 0) {
      store_some(inner + i, gate_times_up(gate, up, all.gelu), some);
      continue;
    }
    gate = min(gate, most), up = max(min(up, most), least);
    store_some(inner + i, gate * sigmoid(all.alpha * gate) * (up + all.added), some);
  }
}

// to [n] += weight * x [n].
void add_weighted(float* to, float weight, const float* x, long n) {
  for (long i = 0; i < n; i += LANES) {
    const long some = std::min(LANES, n - i);
    store_some(to + i, load_some(to + i, some) + weight * load_some(x + i, some), some);
  }
}

// Whether a product gates its outputs itself.
bool gates(const Experts& all, const Linear& down) { return all.limit == 0 && down.inputs % LANES == 0; }

// Floats of what the rows of one expert need between products. All experts of a layer have the same shape and product.
struct ExpertSizes {
  long inputs, both, inner, inner_inputs, outputs;

  ExpertSizes(const Experts& all, long rows) {
    const Linear &gate_up = *all.gate_up, &down = *all.down;
    inputs = whole_lines(inputs_room(gate_up, rows));
    both = gates(all, down) ? 0 : whole_lines(rows * gate_up.outputs);
    inner = whole_lines(rows * down.inputs);
    inner_inputs = whole_lines(inputs_room(down, rows));
    outputs = whole_lines(rows * down.outputs);
  }
  long all() const { return inputs + both + inner + inner_inputs + outputs; }
};

// The outputs [rows, outputs] of expert e in `room`, of the size above. Its row r is at x + place(r) * inputs.
template <class F>
const float* run_expert(const Experts& all, long e, const float* x, F&& place, long rows, float* room, int threads) {
  const Linear &gate_up = all.gate_up[e], &down = all.down[e];
  const long width = gate_up.inputs;
  const ExpertSizes sizes(all, rows);
  float* const inputs = room;
  float* const both = inputs + sizes.inputs;
  float* const inner = both + sizes.both;
  float* const inner_inputs = inner + sizes.inner;
  float* const made = inner_inputs + sizes.inner_inputs;
  parallel_rows(rows, width, threads, [&](long first, long last) {
    for (long r = first; r < last; r++) put_row(gate_up, x + place(r) * width, inputs, r);
  });
  const float* gated;
  if (gates(all, down)) {
    gated = project_gated(gate_up, inputs, down, inner, inner_inputs, rows, all.gelu, threads);
  } else {
    project(gate_up, inputs, both, rows, threads);
    parallel_rows(rows, down.inputs, threads, [&](long first, long last) {
      for (long r = first; r < last; r++)
        gate_row(all, both + r * gate_up.outputs, inner + r * down.inputs, down.inputs);
    });
    gated = take_inputs(down, inner, inner_inputs, rows, threads);
  }
  project(down, gated, made, rows, threads);
  return made;
}

// The same for the rows that chose expert e.
const float* run_chosen(const Experts& all, const Choices& c, const ByExpert& by, long e, const float* x, float* room,
                        int threads) {
  const long* const places = by.places + by.first[e];
  return run_expert(all, e, x, [&](long r) { return places[r] / c.each; }, by.rows(e), room, threads);
}

// Whether each thread computes experts of its own. It then waits for the others once, not in each product. Experts that do
// not fill their last turn may waste an eighth of the time.
bool own_experts(const ByExpert& by, int threads) {
  const long count = *by.used;
  if (threads == 1 || count == 0 || by.rows(by.chosen[0]) > OWN_ROWS) return false;
  const long turns = (count + threads - 1) / threads, missing = turns * threads - count;
  return 8 * missing <= count;
}

// The room of a thread for an expert of its own.
float* own_room(long size) {
  static thread_local Scratch scratch;
  return scratch.take(size);
}

// outputs [count] -> the scores of the experts, in place.
void score(const Router& router, float* outputs) {
  const long count = router.linear.outputs;
  float top = 0;
  int64_t place;
  if (!router.sigmoid) find_largest(outputs, count, &top, &place);
  F16 total = {};
  for (long i = 0; i < count; i += LANES) {
    const long some = std::min(LANES, count - i);
    const F16 v = load_some(outputs + i, some);
    store_some(outputs + i, router.sigmoid ? sigmoid(v) : exp(v - splat(top)), some);
    total += load_some(outputs + i, some);
  }
  const float all = router.sigmoid ? 1 : sum(total);
  for (long i = 0; i < count; i++) outputs[i] /= all;
}

// to [count] = scores [count] of the groups that are kept, and -infinity elsewhere. `sums`: room for a number of each group.
void keep_groups(const Router& router, const float* scores, float* to, float* sums) {
  const long count = router.linear.outputs, each = count / router.groups;
  for (long g = 0; g < router.groups; g++) {
    float first = -__builtin_inff(), second = first;
    for (long e = g * each; e < (g + 1) * each; e++) {
      second = std::max(second, std::min(first, scores[e]));
      first = std::max(first, scores[e]);
    }
    sums[g] = router.best == 2 ? first + second : first;
  }
  std::fill(to, to + count, -__builtin_inff());
  for (long i = 0; i < router.kept; i++) {
    float largest;
    int64_t group;
    find_largest(sums, router.groups, &largest, &group);
    std::copy(scores + group * each, scores + (group + 1) * each, to + group * each);
    sums[group] = -__builtin_inff();
  }
}

// The experts of a row of the router's outputs [count], which become scores, with their weights.
void choose(const Router& router, float* outputs, int64_t* experts, float* weights) {
  const long count = router.linear.outputs;
  float* const corrected = own_room(2 * count + router.groups);
  float* const kept = router.groups > 1 ? corrected + count : corrected;
  score(router, outputs);
  for (long i = 0; i < count; i++) corrected[i] = outputs[i] + (router.correction ? router.correction[i] : 0.f);
  if (router.groups > 1) keep_groups(router, corrected, kept, corrected + 2 * count);
  float chosen = 0;
  for (long i = 0; i < router.each; i++) {
    float largest;
    find_largest(kept, count, &largest, experts + i);
    kept[experts[i]] = -__builtin_inff();
    weights[i] = outputs[experts[i]];
    chosen += weights[i];
  }
  for (long i = 0; i < router.each; i++) weights[i] = (router.normalised ? weights[i] / chosen : weights[i]) * router.scale;
}

// Rows of a tile of what is shared, at most: a long prompt's inner numbers would not stay in the caches.
constexpr long SHARED_ROWS = 256;

// Floats of the parts of the room of what rows share.
struct SharedSizes {
  long expert = 0, inputs = 0, weights = 0;

  SharedSizes(const Mixture& m, long rows) {
    rows = std::min(rows, SHARED_ROWS);
    if (!m.shared.count) return;
    expert = ExpertSizes(m.shared, rows).all();
    if (m.gate.outputs) inputs = whole_lines(inputs_room(m.gate, rows)), weights = whole_lines(rows);
  }
  long all() const { return expert + inputs + weights; }
};

// out [rows, outputs] += what the rows of x share. `made`: its outputs, or null; `room`: of the size above.
void add_shared(const Mixture& m, const float* x, const float* made, float* out, long rows, float* room, int threads) {
  const long width = m.shared.gate_up->inputs, outputs = m.shared.down->outputs;
  for (long from = 0; from < rows; from += SHARED_ROWS) {
    const long some = std::min(SHARED_ROWS, rows - from);
    const SharedSizes sizes(m, some);
    float* const inputs = room + sizes.expert;
    float* const weights = inputs + sizes.inputs;
    const float* const in = x + from * width;
    const float* const shared = made ? made + from * outputs
                                     : run_expert(m.shared, 0, in, [](long r) { return r; }, some, room, threads);
    if (m.gate.outputs) project(m.gate, take_inputs(m.gate, in, inputs, some, threads), weights, some, threads);
    parallel_rows(some, outputs, threads, [&](long first, long last) {
      for (long r = first; r < last; r++)
        add_weighted(out + (from + r) * outputs, m.gate.outputs ? max(sigmoid(splat(weights[r]))) : 1,
                     shared + r * outputs, outputs);
    });
  }
}

// Floats of the parts of `mixture_room`.
struct MixtureSizes {
  long inputs, outputs, weights, experts, room;

  MixtureSizes(const Mixture& m, long rows, int threads) {
    const Router& router = m.router;
    inputs = whole_lines(inputs_room(router.linear, rows));
    outputs = whole_lines(rows * router.linear.outputs);
    weights = whole_lines(rows * router.each);
    experts = whole_lines(2 * rows * router.each);
    room = std::max(experts_room(m.experts, rows, router.each, threads), SharedSizes(m, rows).all());
  }
  long all() const { return inputs + outputs + weights + experts + room; }
};

// Longs of memory of a caller.
long* own_numbers(long count) {
  static thread_local Scratch scratch;
  return (long*)scratch.take(2 * count);
}

}  // namespace

void ByExpert::fill(const Choices& c, long count) {
  const long all = c.rows * c.each;
  const auto is_one = [&](long i) { return c.experts[i] >= 0 && c.experts[i] < count; };
  std::fill(first, first + count + 1, 0);
  for (long i = 0; i < all; i++)
    if (is_one(i)) first[c.experts[i] + 1]++;
  for (long e = 0; e < count; e++) first[e + 1] += first[e];
  for (long i = 0; i < all; i++)
    if (is_one(i)) places[first[c.experts[i]]++] = i;
  for (long e = count; e > 0; e--) first[e] = first[e - 1];
  first[0] = 0;
  std::fill(index, index + all, -1);
  for (long i = 0; i < first[count]; i++) {
    long* at = index + places[i] / c.each * c.each;
    while (*at >= 0) at++;
    *at = i;
  }
  long* end = chosen;
  for (long e = 0; e < count; e++)
    if (rows(e)) *end++ = e;
  std::sort(chosen, end, [&](long a, long b) { return rows(a) != rows(b) ? rows(a) > rows(b) : a < b; });
  *used = end - chosen;
}

long experts_room(const Experts& all, long rows, long each, int threads) {
  const long together = ExpertSizes(all, rows).all();
  const long most = std::min(rows * each, all.count * OWN_ROWS);  // places of experts of which threads have their own
  return std::max(together, threads > 1 ? whole_lines(most * all.down->outputs) : 0);
}

void compute_experts(const Experts& all, const Choices& c, const ByExpert& by, const float* x, float* out, float* room,
                     int threads) {
  const long outputs = all.down->outputs;
  if (own_experts(by, threads)) {
    parallel(*by.used, threads, [&](long i, Turn& turn) {
      const long e = by.chosen[i], rows = by.rows(e);
      const float* made;
      {
        const Alone alone;
        made = run_chosen(all, c, by, e, x, own_room(ExpertSizes(all, rows).all()), 1);
      }
      if (turn.mine()) std::copy(made, made + rows * outputs, room + by.first[e] * outputs);
    });
    return parallel_rows(c.rows, c.each * outputs, threads, [&](long first, long last) {
      std::fill(out + first * outputs, out + last * outputs, 0.f);
      for (long i = first * c.each; i < last * c.each; i++)
        if (const long at = by.index[i]; at >= 0)
          add_weighted(out + i / c.each * outputs, c.weights[by.places[at]], room + at * outputs, outputs);
    });
  }
  parallel_rows(c.rows, outputs, threads,
                [&](long first, long last) { std::fill(out + first * outputs, out + last * outputs, 0.f); });
  for (long e = 0; e < all.count; e++) {
    const long rows = by.rows(e);
    if (!rows) continue;
    const long* const places = by.places + by.first[e];
    const float* const made = run_chosen(all, c, by, e, x, room, threads);
    parallel_rows(rows, outputs, threads, [&](long first, long last) {
      for (long r = first; r < last; r++)
        add_weighted(out + places[r] / c.each * outputs, c.weights[places[r]], made + r * outputs, outputs);
    });
  }
}

void run_experts(const Experts* experts, const Choices* choices, const float* x, float* out, int threads) {
  const Experts& all = *experts;
  const Choices& c = *choices;
  ByExpert by(own_numbers(ByExpert::size(all.count, c)), all.count, c);
  by.fill(c, all.count);
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  float* const room = scratch.take(experts_room(all, c.rows, c.each, threads));
  together(threads, [&] { compute_experts(all, c, by, x, out, room, threads); });
}

long mixture_room(const Mixture& m, long rows, int threads) { return MixtureSizes(m, rows, threads).all(); }

long mixture_numbers(const Mixture& m, long rows) {
  return ByExpert::size(m.experts.count, {nullptr, nullptr, rows, m.router.each});
}

void compute_mixture(const Mixture& m, const float* x, const float* shared, float* out, long rows, float* room,
                     long* numbers, int threads) {
  const Router& router = m.router;
  const MixtureSizes sizes(m, rows, threads);
  float* const inputs = room;
  float* const outputs = inputs + sizes.inputs;
  float* const weights = outputs + sizes.outputs;
  int64_t* const experts = (int64_t*)(weights + sizes.weights);
  const Choices choices{experts, weights, rows, router.each};
  ByExpert by(numbers, m.experts.count, choices);
  project(router.linear, take_inputs(router.linear, x, inputs, rows, threads), outputs, rows, threads);
  parallel_rows(rows, router.each * router.linear.outputs, threads, [&](long first, long last) {
    for (long r = first; r < last; r++)
      choose(router, outputs + r * router.linear.outputs, experts + r * router.each, weights + r * router.each);
  });
  parallel(1, threads, [&](long) { by.fill(choices, m.experts.count); });
  float* const rest = room + sizes.all() - sizes.room;
  compute_experts(m.experts, choices, by, x, out, rest, threads);
  if (m.shared.count) add_shared(m, x, shared, out, rows, rest, threads);
}

void run_mixture(const Mixture* mixture, const float* x, const float* shared, float* out, long rows, int threads) {
  static thread_local Scratch scratch;  // as above
  float* const room = scratch.take(mixture_room(*mixture, rows, threads));
  long* const numbers = own_numbers(mixture_numbers(*mixture, rows));
  together(threads, [&] { compute_mixture(*mixture, x, shared, out, rows, room, numbers, threads); });
}
