// All decoder layers of a step in one call. A layer is a norm, attention with rotary positions, a norm and a gated MLP.
// Each part computes what its own function in exports.h computes, bit for bit. The outputs of a product are added to
// the residual stream or gated while they are in registers or in the first-level cache. A long prefill is computed in
// tiles of rows that stay in the second-level cache.
#include "layers.h"

#include <algorithm>

#include "attention.h"
#include "exports.h"
#include "laps.h"
#include "linear.h"
#include "pool.h"
#include "rotary.h"
#include "rowwise.h"
#include "scratch.h"

namespace {

constexpr long TILE = 256;  // rows

// Calls work(first row, number of rows) for tiles that cover all rows.
template <class F>
void tiles(long rows, F&& work) {
  for (long first = 0; first < rows; first += TILE) work(first, std::min(TILE, rows - first));
}

double* wanted_seconds = nullptr;  // by part; null: nobody asks

}  // namespace

void time_parts(double* seconds) { wanted_seconds = seconds; }

void run_layers(const Layer* layers, const Cache* const* caches, long count, const Step* step, int threads) {
  const Step& s = *step;
  const long tile = std::min(TILE, s.rows);
  const auto attention = [&](const Layer& l, const Cache& c, const float* qkv, float* out) {
    return Attention{qkv,           out,     s.start,       s.length,  s.tables, nullptr,  s.sequences,
                     s.table_width, l.heads, l.qkv.outputs, c.key_dim, 1,        l.window, l.scale,
                     l.softcap};
  };
  // Floats of each buffer: `gated` are the outputs of gates, where the next product does not take them in that form.
  long inputs = 0, gated = 0, gated_inputs = 0, qkv = 0, attended = 0, parts = 0;
  for (long i = 0; i < count; i++) {
    const Layer& l = layers[i];
    for (const Linear* linear : {&l.qkv, &l.out, &l.gate_up}) inputs = std::max(inputs, inputs_room(*linear, tile));
    gated = std::max(gated, whole_lines(tile * l.down.inputs));
    gated_inputs = std::max(gated_inputs, inputs_room(l.down, tile));
    qkv = std::max(qkv, whole_lines(s.rows * l.qkv.outputs));
    attended = std::max(attended, whole_lines(s.rows * l.out.inputs));
    parts = std::max(parts, attention_room(attention(l, *caches[i], nullptr, nullptr), *caches[i], threads));
  }
  static thread_local Scratch scratch;  // one for each caller: two threads may run steps at once
  float* const inputs_at = scratch.take(inputs + gated + gated_inputs + qkv + attended + parts);
  float* const gated_at = inputs_at + inputs;
  float* const gated_inputs_at = gated_at + gated;
  float* const qkv_at = gated_inputs_at + gated_inputs;
  float* const attended_at = qkv_at + qkv;
  float* const parts_at = attended_at + attended;

  Laps laps(wanted_seconds);
  together(threads, [&] {
    for (long i = 0; i < count; i++) {
      const Layer& l = layers[i];
      const Cache& cache = *caches[i];
      const long width = l.qkv.inputs, dim = cache.key_dim, inner = l.out.inputs;
      tiles(s.rows, [&](long first, long rows) {
        float* const out = qkv_at + first * l.qkv.outputs;
        norm_inputs(s.states + first * width, l.norm_in, l.eps_in, l.qkv, inputs_at, rows, threads);
        laps.end(NORMS);
        const Heads heads{out,        s.cos + first * dim / 2, s.sin + first * dim / 2, l.q_norm, l.k_norm,
                          l.eps_head, cache,                   s.slots + first,         l.heads};
        const bool turned = project_heads(l.qkv, inputs_at, heads, rows, threads);
        if (!turned) project(l.qkv, inputs_at, out, rows, threads);
        laps.end(QKV_PRODUCT);
        if (!turned) turn_heads(heads, rows, threads);
        laps.end(ROTARY);
      });
      attend_all(attention(l, cache, qkv_at, attended_at), cache, parts_at, threads);
      laps.end(ATTENTION);
      tiles(s.rows, [&](long first, long rows) {
        float* const states = s.states + first * width;
        const float* const heads = take_inputs(l.out, attended_at + first * inner, inputs_at, rows, threads);
        add_projection(l.out, heads, states, rows, threads);
        laps.end(OUT_PRODUCT);
        norm_inputs(states, l.norm_mid, l.eps_mid, l.gate_up, inputs_at, rows, threads);
        laps.end(NORMS);
        const float* const gates =
            project_gated(l.gate_up, inputs_at, l.down, gated_at, gated_inputs_at, rows, l.gelu, threads);
        laps.end(GATE_UP_PRODUCT);
        add_projection(l.down, gates, states, rows, threads);
        laps.end(DOWN_PRODUCT);
      });
    }
  });
}
