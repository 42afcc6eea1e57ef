// All decoder layers of a step in one call. A layer is attention with rotary positions, or a gated delta rule, and a gated
// MLP or a mixture of experts, with norms before them, after them, or both.
// Each part computes what its own function in exports.h computes, bit for bit. The outputs of a product are added to
// the residual stream or gated while they are in registers or in the first-level cache. A long prefill is computed in
// tiles of rows that stay in the second-level cache.
#include "layers.h"

#include <algorithm>
#include <cstring>

#include "attention.h"
#include "exports.h"
#include "laps.h"
#include "linear.h"
#include "pool.h"
#include "rotary.h"
#include "rowwise.h"
#include "scratch.h"

namespace {

constexpr long TILE = 256;       // rows of a tile that all threads compute together
constexpr long OWN_LEAST = 128;  // rows, at least, of a tile that one thread computes: it widens all weights for them
constexpr long OWN_MOST = 320;   // rows, at most: more would not stay in the second-level cache

// Such a tile has whole units of the rows that products take at once: 32 on tile registers, eight on vectors.
long own_unit() { return product_rank(TILES) ? 32 : 8; }

// How the rows of a step are cut into tiles. Threads compute a tile together, each some of its outputs; or each thread
// computes a tile of its own, from one product to the next, and what it writes stays in its caches.
struct Tiling {
  long rows, tile;
  bool own;

  Tiling(long rows, int threads)
      : rows(rows), tile(std::min(TILE, rows)), own(threads > 1 && rows >= OWN_LEAST * threads) {
    if (!own) return;
    const long tiles = (rows + OWN_MOST * threads - 1) / (OWN_MOST * threads) * threads;
    const long unit = own_unit();
    tile = ((rows + tiles - 1) / tiles + unit - 1) / unit * unit;
  }
};

// Whether the outputs of a product change before they are added to the residual stream.
bool changes(const Norm& norm, const Layer& l) { return norm.weight || l.added != 1; }

// Floats of what a tile needs between products. `gated`: the outputs of gates, where the next product does not take
// them in that form. `delta`: outputs that change before they are added.
struct TileSizes {
  long inputs = 0, gated = 0, gated_inputs = 0, delta = 0;

  void add(const Layer& l, long tile) {
    if (changes(l.norm_attended, l) || changes(l.norm_gated, l))
      delta = std::max(delta, whole_lines(tile * l.qkv.inputs));
    for (const Linear* linear : {&l.qkv, &l.out}) inputs = std::max(inputs, inputs_room(*linear, tile));
    if (l.mixture) return;
    inputs = std::max(inputs, inputs_room(l.gate_up, tile));
    gated = std::max(gated, whole_lines(tile * l.down.inputs));
    gated_inputs = std::max(gated_inputs, inputs_room(l.down, tile));
  }
  long all() const { return inputs + gated + gated_inputs + delta; }
};

struct TileRoom {
  float *inputs, *gated, *gated_inputs, *delta;

  TileRoom(float* at, const TileSizes& sizes)
      : inputs(at), gated(inputs + sizes.inputs), gated_inputs(gated + sizes.gated),
        delta(gated_inputs + sizes.gated_inputs) {}
};

// The room of a tile of its own. It belongs to the calling thread.
float* own_room(const TileSizes& sizes) {
  static thread_local Scratch scratch;
  return scratch.take(sizes.all());
}

// Calls work(first row, number of rows, room, threads) for tiles that cover all rows. `common`: the room of a tile that
// the threads share.
template <class F>
void tiles(const Tiling& tiling, const TileSizes& sizes, float* common, int threads, F&& work) {
  const auto rows = [&](long first) { return std::min(tiling.tile, tiling.rows - first); };
  if (!tiling.own) {
    for (long first = 0; first < tiling.rows; first += tiling.tile)
      work(first, rows(first), TileRoom(common, sizes), threads);
    return;
  }
  parallel((tiling.rows + tiling.tile - 1) / tiling.tile, threads, [&](long i) {
    const Alone alone;
    work(i * tiling.tile, rows(i * tiling.tile), TileRoom(own_room(sizes), sizes), 1);
  });
}

// Moves the wanted rows of each sequence, its last ones, to the front. Rows are `width` floats.
void move_wanted(const Step& s, float* rows, long width) {
  for (long q = 0; q < s.sequences; q++) {
    const long count = s.wanted[q + 1] - s.wanted[q];
    memmove(rows + s.wanted[q] * width, rows + (s.start[q + 1] - count) * width, count * width * sizeof(float));
  }
}

// states [rows, width] += what `linear` makes of `inputs`, with a norm and a factor of the layer.
void add_outputs(const Layer& l, const Linear& linear, const Norm& norm, const float* inputs, float* states, long rows,
                 float* delta, int threads) {
  if (!changes(norm, l)) return add_projection(linear, inputs, states, rows, threads);
  const long width = linear.outputs;
  project(linear, inputs, delta, rows, threads);
  parallel_rows(rows, width, threads, [&](long first, long last) {
    for (long row = first; row < last; row++)
      add_delta(states + row * width, delta + row * width, norm, l.added, width);
  });
}

// The floats of a row of heads that `out` takes, if they are rounded at once; else 0.
long rounded_heads(const Layer& l) { return l.delta || l.gated ? 0 : rounded_row(l.out); }

// projected [rows, qkv outputs] -> out [rows, out inputs]: what a layer with a delta rule has between its products.
void run_rule(const Layer& l, const Step& s, const float* projected, float* out, int threads) {
  Delta rule = *l.delta;
  rule.projected = projected, rule.out = out;
  for (long w = 0; w < s.wave_count; w++) run_delta(&rule, s.waves[w].spans, s.waves[w].count, threads);
}

double* wanted_seconds = nullptr;  // by part; null: nobody asks

}  // namespace

void time_parts(double* seconds) { wanted_seconds = seconds; }

void run_layers(const Layer* layers, const Cache* const* caches, long count, const Step* step, int threads) {
  const Step& s = *step;
  const Tiling all(s.rows, threads);
  const Tiling wanted(s.wanted ? s.wanted[s.sequences] : s.rows, threads);  // of the last layer, after its keys and values
  // Its outputs are rounded at once where the next product takes rows of bfloat16.
  const auto attention = [&](const Layer& l, const Cache& c, bool narrow, const float* qkv, float* out) {
    const long rounded = rounded_heads(l);
    Attention a{};
    a.query = qkv, a.query_row = l.qkv.outputs, a.query_head = c.key_dim, a.wide_query = 1;
    a.out = out, a.out_row = rounded ? rounded : l.out.inputs, a.wide_out = !rounded;
    a.start = narrow ? s.wanted : s.start, a.length = s.length, a.tables = s.tables;
    a.sequences = s.sequences, a.table_width = s.table_width;
    a.heads = l.heads, a.window = l.window, a.scale = l.scale, a.softcap = l.softcap;
    return a;
  };
  TileSizes sizes;
  long qkv = 0, attended = 0, parts = 0, mixed = 0, experts = 0;  // floats of each buffer
  long numbers = 0;                                               // longs of all mixtures
  for (long i = 0; i < count; i++) {
    const Layer& l = layers[i];
    const bool narrow = s.wanted && i == count - 1;
    sizes.add(l, all.tile);
    if (narrow) sizes.add(l, wanted.tile);
    qkv = std::max(qkv, whole_lines(s.rows * l.qkv.outputs));
    attended = std::max(attended, whole_lines(std::max(s.rows * l.out.inputs, inputs_room(l.out, s.rows))));
    if (!l.delta)
      parts = std::max(parts, attention_room(attention(l, *caches[i], narrow, nullptr, nullptr), *caches[i], threads));
    if (!l.mixture) continue;
    mixed = whole_lines(s.rows * l.qkv.inputs);
    experts = std::max(experts, mixture_room(*l.mixture, s.rows, threads));
    numbers += mixture_numbers(*l.mixture, s.rows);
  }
  static thread_local Scratch scratch;  // one for each caller: two threads may run steps at once
  float* const common = scratch.take(sizes.all() + qkv + attended + whole_lines(parts) + 2 * mixed + experts + 2 * numbers);
  float* const qkv_at = common + sizes.all();
  float* const attended_at = qkv_at + qkv;
  float* const parts_at = attended_at + attended;
  float* const normed_at = parts_at + whole_lines(parts);  // inputs of a mixture, and behind them its outputs
  float* const experts_at = normed_at + 2 * mixed;

  Laps laps(wanted_seconds);
  together(threads, [&] {
    long* numbers_at = (long*)(experts_at + experts);
    for (long i = 0; i < count; i++) {
      const Layer& l = layers[i];
      const long width = l.qkv.inputs, inner = l.out.inputs;
      const bool narrow = s.wanted && i == count - 1;
      tiles(all, sizes, common, threads, [&](long first, long rows, const TileRoom& room, int sharing) {
        float* const out = qkv_at + first * l.qkv.outputs;
        norm_inputs(s.states + first * width, l.norm_in, l.qkv, room.inputs, rows, sharing);
        laps.end(NORMS);
        if (l.delta) {
          project(l.qkv, room.inputs, out, rows, sharing);
          return laps.end(QKV_PRODUCT);
        }
        const Cache& cache = *caches[i];
        const long dim = cache.key_dim;
        const Heads heads{out,
                          s.cos[l.rotary] + first * dim / 2,
                          s.sin[l.rotary] + first * dim / 2,
                          l.q_norm,
                          l.k_norm,
                          l.eps_head,
                          cache,
                          s.slots + first,
                          l.heads,
                          l.whole,
                          l.qkv.outputs,
                          inner * (1 + l.gated)};
        const bool turned = !l.gated && project_heads(l.qkv, room.inputs, heads, rows, sharing);
        if (!turned) project(l.qkv, room.inputs, out, rows, sharing);
        laps.end(QKV_PRODUCT);
        if (!turned) turn_heads(heads, rows, sharing);
        laps.end(ROTARY);
      });
      laps.end(QKV_PRODUCT);  // the wait for the tiles of other threads
      if (l.delta) run_rule(l, s, qkv_at, attended_at, threads);
      if (narrow) {
        if (wanted.rows == 0) break;
        parallel(1, threads, [&](long) {
          l.delta ? move_wanted(s, attended_at, inner) : move_wanted(s, qkv_at, l.qkv.outputs);
          move_wanted(s, s.states, width);
        });
      }
      if (!l.delta) attend_all(attention(l, *caches[i], narrow, qkv_at, attended_at), *caches[i], parts_at, threads);
      laps.end(ATTENTION);
      tiles(narrow ? wanted : all, sizes, common, threads, [&](long first, long rows, const TileRoom& room, int sharing) {
        float* const states = s.states + first * width;
        const auto gates = [&](const Norm& norm) {
          norm_inputs(states, norm, l.gate_up, room.inputs, rows, sharing);
          laps.end(NORMS);
          const float* const made =
              project_gated(l.gate_up, room.inputs, l.down, room.gated, room.gated_inputs, rows, l.gelu, sharing);
          laps.end(GATE_UP_PRODUCT);
          return made;
        };
        const float* gated = l.parallel ? gates(l.norm_in) : nullptr;
        if (l.gated)
          gate_heads(attended_at + first * inner, qkv_at + first * l.qkv.outputs + inner, rows, inner, l.qkv.outputs,
                     sharing);
        const long rounded = rounded_heads(l);
        const float* const heads =
            rounded ? (const float*)((const bf16*)attended_at + first * rounded)
                    : take_inputs(l.out, attended_at + first * inner, room.inputs, rows, sharing);
        add_outputs(l, l.out, l.norm_attended, heads, states, rows, room.delta, sharing);
        laps.end(OUT_PRODUCT);
        if (l.mixture) {
          norm_rows(states, l.norm_mid, normed_at + first * width, rows, width, sharing);
          return laps.end(NORMS);
        }
        if (!l.parallel) gated = gates(l.norm_mid);
        add_outputs(l, l.down, l.norm_gated, gated, states, rows, room.delta, sharing);
        laps.end(DOWN_PRODUCT);
      });
      laps.end(DOWN_PRODUCT);  // as above
      if (!l.mixture) continue;
      const long rows = (narrow ? wanted : all).rows;
      float* const made = normed_at + mixed;
      compute_mixture(*l.mixture, normed_at, nullptr, made, rows, experts_at, numbers_at, threads);
      numbers_at += mixture_numbers(*l.mixture, s.rows);
      parallel_rows(rows, width, threads, [&](long first, long last) {
        for (long row = first; row < last; row++)
          add_delta(s.states + row * width, made + row * width, l.norm_gated, l.added, width);
      });
      laps.end(EXPERTS);
    }
  });
}
