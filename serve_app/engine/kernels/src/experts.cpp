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

// The outputs [rows, outputs] of expert e for the rows of x that chose it, in `room`, of the size above.
const float* run_expert(const Experts& all, const Choices& c, const ByExpert& by, long e, const float* x, float* room,
                        int threads) {
  const Linear &gate_up = all.gate_up[e], &down = all.down[e];
  const long rows = by.rows(e), width = gate_up.inputs;
  const long* const places = by.places + by.first[e];
  const ExpertSizes sizes(all, rows);
  float* const inputs = room;
  float* const both = inputs + sizes.inputs;
  float* const inner = both + sizes.both;
  float* const inner_inputs = inner + sizes.inner;
  float* const made = inner_inputs + sizes.inner_inputs;
  parallel_rows(rows, width, threads, [&](long first, long last) {
    for (long r = first; r < last; r++) put_row(gate_up, x + places[r] / c.each * width, inputs, r);
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

// The experts of a row of the router's outputs [count], which change, with their weights.
void choose(const Router& router, float* outputs, int64_t* experts, float* weights) {
  const long count = router.linear.outputs;
  float top;
  int64_t place;
  find_largest(outputs, count, &top, &place);
  const F16 most = splat(top);
  F16 total = {};
  for (long i = 0; i < count; i += LANES) {
    const long some = std::min(LANES, count - i);
    const F16 share = exp(load_some(outputs + i, some) - most);
    alignas(64) float kept[LANES] = {};
    store_some(kept, share, some);
    total += load(kept);
  }
  const float all = sum(total);
  float chosen = 0;
  for (long i = 0; i < router.each; i++) {
    float value;
    find_largest(outputs, count, &value, experts + i);
    weights[i] = max(exp(splat(value) - most)) / all;
    outputs[experts[i]] = -__builtin_inff();
    chosen += weights[i];
  }
  if (router.normalised)
    for (long i = 0; i < router.each; i++) weights[i] /= chosen;
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
    room = experts_room(m.experts, rows, router.each, threads);
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
        made = run_expert(all, c, by, e, x, own_room(ExpertSizes(all, rows).all()), 1);
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
    const float* const made = run_expert(all, c, by, e, x, room, threads);
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

void compute_mixture(const Mixture& m, const float* x, float* out, long rows, float* room, long* numbers, int threads) {
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
  compute_experts(m.experts, choices, by, x, out, room + sizes.all() - sizes.room, threads);
}

void run_mixture(const Mixture* mixture, const float* x, float* out, long rows, int threads) {
  static thread_local Scratch scratch;  // as above
  float* const room = scratch.take(mixture_room(*mixture, rows, threads));
  long* const numbers = own_numbers(mixture_numbers(*mixture, rows));
  together(threads, [&] { compute_mixture(*mixture, x, out, rows, room, numbers, threads); });
}
