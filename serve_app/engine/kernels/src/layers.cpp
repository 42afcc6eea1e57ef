// All decoder layers of a step in one call. A layer is a norm, attention with rotary positions, a norm and a gated MLP.
// Each part computes what its own function in exports.h computes, bit for bit. The outputs of a product are added to
// the residual stream or gated while they are in registers or in the first-level cache. A long prefill is computed in
// tiles of rows that stay in the second-level cache.
#include "layers.h"

#include <algorithm>

#include "attention.h"
#include "exports.h"
#include "linear.h"
#include "pool.h"
#include "scratch.h"

namespace {

constexpr long TILE = 256;  // rows

// Calls work(first row, number of rows) for tiles that cover all rows.
template <class F>
void tiles(long rows, F&& work) {
  for (long first = 0; first < rows; first += TILE) work(first, std::min(TILE, rows - first));
}

}  // namespace

void run_layers(const Layer* layers, const Cache* const* caches, long count, const Step* step, int threads) {
  const Step& s = *step;
  const long tile = std::min(TILE, s.rows);
  const auto attention = [&](const Layer& l, const Cache& c, const float* qkv, float* out) {
    return Attention{qkv,           out,     s.start,       s.length,  s.tables, nullptr,  s.sequences,
                     s.table_width, l.heads, l.qkv.outputs, c.key_dim, 1,        l.window, l.scale,
                     l.softcap};
  };
  long hidden = 0, qkv = 0, attended = 0, rounding = 0, parts = 0;
  for (long i = 0; i < count; i++) {
    const Layer& l = layers[i];
    hidden = std::max(hidden, tile * (l.qkv.inputs + l.down.inputs));
    qkv = std::max(qkv, s.rows * l.qkv.outputs), attended = std::max(attended, s.rows * l.out.inputs);
    for (const Linear* linear : {&l.qkv, &l.out, &l.gate_up, &l.down})
      rounding = std::max(rounding, rounding_room(*linear, tile));
    parts = std::max(parts, attention_room(attention(l, *caches[i], nullptr, nullptr), *caches[i], threads));
  }
  static thread_local Scratch scratch;  // one for each caller: two threads may run steps at once
  float* const hidden_at = scratch.take(whole_lines(hidden) + whole_lines(qkv) + whole_lines(attended) + rounding + parts);
  float* const qkv_at = hidden_at + whole_lines(hidden);
  float* const attended_at = qkv_at + whole_lines(qkv);
  float* const rounding_at = attended_at + whole_lines(attended);
  float* const parts_at = rounding_at + rounding;

  together(threads, [&] {
    for (long i = 0; i < count; i++) {
      const Layer& l = layers[i];
      const Cache& cache = *caches[i];
      const long width = l.qkv.inputs, dim = cache.key_dim, inner = l.out.inputs;
      float* const normed = hidden_at;
      float* const gated = hidden_at + tile * width;
      tiles(s.rows, [&](long first, long rows) {
        float* const out = qkv_at + first * l.qkv.outputs;
        add_rmsnorm(s.states + first * width, nullptr, l.norm_in, normed, rows, width, l.eps_in, threads);
        project(l.qkv, normed, out, rows, rounding_at, threads);
        rope_and_cache(out, s.cos + first * dim / 2, s.sin + first * dim / 2, l.q_norm, l.k_norm, l.eps_head, &cache,
                       s.slots + first, rows, l.heads, threads);
      });
      attend_all(attention(l, cache, qkv_at, attended_at), cache, parts_at, threads);
      tiles(s.rows, [&](long first, long rows) {
        float* const states = s.states + first * width;
        add_projection(l.out, attended_at + first * inner, states, rows, rounding_at, threads);
        add_rmsnorm(states, nullptr, l.norm_mid, normed, rows, width, l.eps_mid, threads);
        project_gated(l.gate_up, normed, gated, rows, l.gelu, rounding_at, threads);
        add_projection(l.down, gated, states, rows, rounding_at, threads);
      });
    }
  });
}
