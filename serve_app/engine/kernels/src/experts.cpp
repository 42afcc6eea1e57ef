// The experts of one layer for all rows of a step, in one call.
//
// Rows are taken by expert: an expert's weights are read once, by the products of a linear layer. A row adds up its
// experts in the order of their numbers, so its result does not depend on the other rows.
#include "experts.h"

#include <algorithm>
#include <vector>

#include "exports.h"
#include "pool.h"
#include "rowwise.h"
#include "scratch.h"

namespace {

// The places [rows * each] of the choices, by expert: those of expert e are at [first[e], first[e + 1]).
struct ByExpert {
  std::vector<long> first, places;

  ByExpert(const Choices& c, long count) : first(count + 1), places(c.rows * c.each) {
    const auto chosen = [&](long i) { return c.experts[i] >= 0 && c.experts[i] < count; };
    for (long i = 0; i < c.rows * c.each; i++)
      if (chosen(i)) first[c.experts[i] + 1]++;
    for (long e = 0; e < count; e++) first[e + 1] += first[e];
    std::vector<long> next(first.begin(), first.end() - 1);
    for (long i = 0; i < c.rows * c.each; i++)
      if (chosen(i)) places[next[c.experts[i]]++] = i;
  }
  long rows(long e) const { return first[e + 1] - first[e]; }
};

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

// Floats of what the rows of one expert need between products.
struct ExpertSizes {
  long inputs = 0, both = 0, inner = 0, inner_inputs = 0, outputs = 0;

  void add(const Experts& all, long e, long rows) {
    const Linear &gate_up = all.gate_up[e], &down = all.down[e];
    inputs = std::max(inputs, whole_lines(inputs_room(gate_up, rows)));
    if (!gates(all, down)) both = std::max(both, whole_lines(rows * gate_up.outputs));
    inner = std::max(inner, whole_lines(rows * down.inputs));
    inner_inputs = std::max(inner_inputs, whole_lines(inputs_room(down, rows)));
    outputs = std::max(outputs, whole_lines(rows * down.outputs));
  }
  long all() const { return inputs + both + inner + inner_inputs + outputs; }
};

}  // namespace

void run_experts(const Experts* experts, const Choices* choices, const float* x, float* out, int threads) {
  const Experts& all = *experts;
  const Choices& c = *choices;
  const long width = all.gate_up[0].inputs, outputs = all.down[0].outputs;
  const ByExpert by(c, all.count);
  ExpertSizes sizes;
  for (long e = 0; e < all.count; e++)
    if (by.rows(e)) sizes.add(all, e, by.rows(e));
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  float* const inputs = scratch.take(sizes.all());
  float* const both = inputs + sizes.inputs;
  float* const inner = both + sizes.both;
  float* const inner_inputs = inner + sizes.inner;
  float* const made = inner_inputs + sizes.inner_inputs;
  std::fill(out, out + c.rows * outputs, 0.f);
  together(threads, [&] {
    for (long e = 0; e < all.count; e++) {
      const long rows = by.rows(e);
      if (!rows) continue;
      const Linear &gate_up = all.gate_up[e], &down = all.down[e];
      const long* const places = by.places.data() + by.first[e];
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
      parallel_rows(rows, outputs, threads, [&](long first, long last) {
        for (long r = first; r < last; r++)
          add_weighted(out + places[r] / c.each * outputs, c.weights[places[r]], made + r * outputs, outputs);
      });
    }
  });
}
