// One task of attention: some rows of one sequence and one head of keys, over the keys of one part or of all parts.
//
// Softmax is computed online, over tiles of keys. Tiles and parts begin at fixed positions of a sequence, and a tile
// that a row cannot see leaves the row's state unchanged, bit for bit. So a row's result depends neither on the other
// rows nor on the chunks in which its sequence was computed.
#pragma once
#include "attention.h"
#include "attention_few.h"
#include "attention_state.h"
#include "attention_tiles.h"
#include "attention_vectors.h"
#include "pool.h"
#include "scratch.h"

namespace {

constexpr long TILE = 64;  // keys whose scores are held at once, at least one block; twice as many on tile registers
constexpr long FEW = 8;    // up to this many rows, keys and values are read in place, not copied first

// The form of the weights that softmax computes: float32, float32 rounded to bfloat16, or tiles of bfloat16.
enum class Weights { FLOATS, ROUNDED, TILED };

// Fetches `count` elements into the second-level cache, which holds the next tile beside the one in use.
template <class T>
void prefetch(const T* p, long count) {
  const char* const bytes = (const char*)p;
  for (long i = 0; i < count * (long)sizeof(T); i += 64) __builtin_prefetch(bytes + i, 0, 2);
}

// `head`: a head of keys. `first`, `rows`: rows of (token, query head of the group), counted in the sequence.
struct Task {
  long sequence, head, first, rows, part;  // part -1: all
};

struct Worker {
  const Attention& a;
  const Cache& c;
  const long group, tile;
  float *query, *scores, *wide_keys, *wide_values;
  // query_tiles, key_panels and value_panels are the memory of query, wide_keys and wide_values, in the form of tiles.
  bf16 *query_tiles, *weights, *key_panels, *value_panels;
  State state, part_state;
  long positions[ROWS];  // of each row of the task, in its sequence

  Worker(const Attention& a, const Cache& c)
      : a(a),
        c(c),
        group(a.heads / c.kv_heads),
        tile(std::max(1L, (c.tiles ? 2 : 1) * TILE / c.block_size) * c.block_size) {
    static thread_local Scratch scratch;
    const long row = whole_lines(c.key_dim) + tile + 2 * state_row(c);
    query = scratch.take(ROWS * row + tile * (c.key_dim + c.value_pad) + ROWS * tile / 2);
    scores = query + ROWS * whole_lines(c.key_dim);
    wide_keys = scores + ROWS * tile, wide_values = wide_keys + tile * c.key_dim;
    state = state_at(wide_values + tile * c.value_pad), part_state = state_at(state.top + ROWS * state_row(c));
    query_tiles = (bf16*)query, key_panels = (bf16*)wide_keys, value_panels = (bf16*)wide_values;
    weights = (bf16*)(part_state.top + ROWS * state_row(c));
  }

  // The position of a row's token in its sequence.
  long position(const Task& t, long row) const {
    const long tokens = a.start[t.sequence + 1] - a.start[t.sequence];
    return a.length[t.sequence] - tokens + (t.first + row) / group;
  }
  // The first key that a token sees; the last one is the token itself.
  long first_visible(long position) const {
    return a.window ? std::max(0L, position - a.window + 1) : 0;
  }
  // A row's token in the batch, and its head of queries.
  long element(const Task& t, long row) const { return a.start[t.sequence] + (t.first + row) / group; }
  long head(const Task& t, long row) const { return t.head * group + (t.first + row) % group; }

  // Copies the queries of a task, times the scale, in the form that its products take.
  void load_query(const Task& t) {
    for (long r = 0; r < t.rows; r++) {
      positions[r] = position(t, r);
      const long at = element(t, r) * a.query_row + head(t, r) * a.query_head;
      const auto load_at = [&](auto* from, long d) {
        return a.scale * (d + LANES <= c.key_dim ? load(from + at + d) : load_some(from + at + d, c.key_dim - d));
      };
      for (long d = 0; d < c.key_dim; d += LANES) {
        const F16 q = a.wide_query ? load_at((const float*)a.query, d) : load_at((const bf16*)a.query, d);
        if (!c.tiles)
          store_some(query + r * c.key_dim + d, q, std::min(LANES, c.key_dim - d));
        else if (t.rows <= FEW)
          store(query + r * c.key_dim + d, rounded(q));
        else
          store(query_tiles + tile_offset(r, d, c.key_dim), q);
      }
    }
  }

  // Masks the scores of keys key0 .. key0 + keys - 1, computes their weights, and rescales the sums of earlier keys.
  // The weights overwrite the scores, or fill `weights` in the form TILED.
  template <Weights FORM>
  void softmax(const Task& t, long key0, long keys, State s) {
    const long unit = FORM == Weights::TILED ? BF16_INPUTS : LANES, padded = (keys + unit - 1) / unit * unit;
    for (long r = 0; r < t.rows; r++) {
      const auto put_weights = [&](long k, F16 p) {
        if (FORM == Weights::TILED)
          store(weights + tile_offset(r, k, padded), p);
        else
          store(&scores[r * tile] + k, FORM == Weights::ROUNDED ? rounded(p) : p);
      };
      const long pos = positions[r], lo = std::max(0L, first_visible(pos) - key0);
      const long hi = std::min(keys, pos + 1 - key0);
      float* row = &scores[r * tile];
      if (lo >= hi) {
        for (long k = 0; k < padded; k += LANES) put_weights(k, F16{});
        continue;
      }
      if (a.softcap > 0)
        for (long k = 0; k < padded; k += LANES) store(row + k, tanh(load(row + k) / a.softcap) * a.softcap);
      std::fill(row, row + lo, -INF);
      std::fill(row + hi, row + padded, -INF);
      F16 best = splat(-INF);
#pragma GCC unroll 4
      for (long k = 0; k < padded; k += LANES) best = max(best, load(row + k));
      const float m = std::max(s.top[r], max(best));
      F16 sums = {};
#pragma GCC unroll 4
      for (long k = 0; k < padded; k += LANES) {
        const F16 p = exp(load(row + k) - m);
        put_weights(k, p);
        sums += p;
      }
      if (m > s.top[r]) {
        const float shrink = std::exp(s.top[r] - m);
        float* o = s.out + r * c.value_pad;
        for (long d = 0; d < c.value_pad; d += LANES) store(o + d, load(o + d) * shrink);
        s.total[r] *= shrink;
        s.top[r] = m;
      }
      s.total[r] += sum(sums);
    }
  }

  // Calls visit(first key, number of keys, number of keys left) for the tiles of keys that a task reads of one part.
  template <class F>
  void tiles_of(const Task& t, long part, F&& visit) {
    const long end = std::min(position(t, t.rows - 1) + 1, (part + 1) * PART);
    for (long key0 = std::max(part * PART, first_visible(position(t, 0)) / tile * tile); key0 < end; key0 += tile)
      visit(key0, std::min(tile, end - key0), std::max(0L, end - key0 - tile));
  }

  // The block of the cache that has a key.
  long block_of(const Task& t, long key) const { return a.tables[t.sequence * a.table_width + key / c.block_size]; }
  // The number of keys at the start of a tile that no row of the task may see. Their slots may hold old values of
  // another sequence.
  long unseen(const Task& t, long key0) const { return std::max(0L, first_visible(position(t, 0)) - key0); }

  // The sums of a task over the keys of one part -> s, in float32; T is the type of the cache.
  template <class T>
  void run_part(const Task& t, long part, State s) {
    s.reset(t.rows, c.value_pad);
    const long size = c.block_size;
    const bool few = t.rows <= FEW;
    const auto key_block = [&](long key) { return c.key_block<T>(block_of(t, key), t.head); };
    const auto value_block = [&](long key) { return c.value_block<T>(block_of(t, key), t.head); };
    tiles_of(t, part, [&](long key0, long keys, long after) {
      if (few)
        for (long k = 0; k < keys; k += size) prefetch(value_block(key0 + k), std::min(size, keys - k) * c.value_pad);
      for (long k = 0; k < keys; k += size) {
        const T* block = key_block(key0 + k);
        const long width = (std::min(size, keys - k) + LANES - 1) / LANES * LANES;
        if (few)
          product<false>(t.rows, query, c.key_dim, block, size, c.key_dim, scores + k, tile, width);
        else
          widen(block, size, wide_keys + k, tile, c.key_dim, width);
      }
      if (!few)
        product<false>(t.rows, query, c.key_dim, wide_keys, tile, c.key_dim, scores, tile,
                       (keys + LANES - 1) / LANES * LANES);
      else
        for (long k = tile; k < tile + std::min(tile, after); k += size)
          prefetch(key_block(key0 + k), size * c.key_dim);
      softmax<Weights::FLOATS>(t, key0, keys, s);
      const long seen = unseen(t, key0);
      for (long k = 0; k < keys; k += size) {
        const long lo = std::max(0L, seen - k), hi = std::min(size, keys - k);
        if (lo >= hi) continue;
        const T* rows = value_block(key0 + k) + lo * c.value_pad;
        if (few)
          product<true>(t.rows, &scores[k + lo], tile, rows, c.value_pad, hi - lo, s.out, c.value_pad, c.value_pad);
        else
          widen(rows, c.value_pad, wide_values + (k + lo) * c.value_pad, c.value_pad, hi - lo, c.value_pad);
      }
      if (!few && seen < keys)
        product<true>(t.rows, scores + seen, tile, wide_values + seen * c.value_pad, c.value_pad, keys - seen, s.out,
                      c.value_pad, c.value_pad);
    });
  }

  // The same on tile registers.
  void run_part_on_tiles(const Task& t, long part, State s) {
    s.reset(t.rows, c.value_pad);
    const long size = c.block_size, dim = c.key_dim;
    const auto key_block = [&](long key) { return c.key_block<bf16>(block_of(t, key), t.head); };
    const auto value_block = [&](long key) { return c.value_block<bf16>(block_of(t, key), t.head); };
    const TileScope scope(t.rows);
    tiles_of(t, part, [&](long key0, long keys, long) {
      const long panels = (keys + LANES - 1) / LANES;
      for (long j = 0; j < panels; j++) {
        const long key = key0 + j * LANES;
        key_panel(key_block(key) + key % size, size, dim, key_panels + j * dim * LANES);
      }
      tile_products<false>(t.rows, query_tiles, key_panels, panels, dim, scores, tile);
      softmax<Weights::TILED>(t, key0, keys, s);
      const long inputs = (keys + BF16_INPUTS - 1) / BF16_INPUTS * BF16_INPUTS, seen = unseen(t, key0);
      for (long k = 0; k < inputs; k += LANES) {
        const bf16* const rows = k < keys ? value_block(key0 + k) + (key0 + k) % size * c.value_pad : nullptr;
        for (long i = k; i < k + LANES; i += 2) {
          const auto row = [&](long key) { return key < seen || key >= keys ? nullptr : rows + (key - k) * c.value_pad; };
          value_pair(row(i), row(i + 1), c.value_pad, value_panels + i * LANES, inputs * LANES);
        }
      }
      tile_products<true>(t.rows, weights, value_panels, c.value_pad / LANES, inputs, s.out, c.value_pad);
    });
  }

  // The same as on tile registers, for so few rows that most of the work would be to copy keys and values to panels. It
  // reads the cache block by block and fetches the next block; after the last block, the block at `later` if not null.
  void run_part_of_few(const Task& t, long part, State s, const bf16* later) {
    s.reset(t.rows, c.value_pad);
    const long size = c.block_size, width = c.value_pad;
    const auto key_block = [&](long key) { return c.key_block<bf16>(block_of(t, key), t.head); };
    const auto value_block = [&](long key) { return c.value_block<bf16>(block_of(t, key), t.head); };
    tiles_of(t, part, [&](long key0, long keys, long after) {
      for (long k = 0; k < keys; k += size) {
        const bf16* const next = k + size < keys ? key_block(key0 + k + size) : value_block(key0);
        const long some = (std::min(size, keys - k) + LANES - 1) / LANES * LANES;
        few_scores(t.rows, query, c.key_dim, key_block(key0 + k), size, some, next, scores + k, tile);
      }
      softmax<Weights::ROUNDED>(t, key0, keys, s);
      const long seen = unseen(t, key0);
      for (long step = seen / BF16_INPUTS * BF16_INPUTS; step < keys; step += BF16_INPUTS) {
        // Keys go in pairs. Where one of a pair is outside of the visible keys, its weight is 0, and the value of the
        // visible one is read in its place.
        const long first = std::max(step, seen / 2 * 2), last = std::min(step + BF16_INPUTS, (keys + 1) / 2 * 2);
        const bf16* rows[BF16_INPUTS];
        for (long k = first; k < last;) {
          const bf16* const lanes = value_block(key0 + k) + (key0 + k) / LANES * LANES % size * width;
          for (const long end = std::min(last, (k / LANES + 1) * LANES); k < end; k++)
            rows[k - first] = lanes + std::clamp(k, seen, keys - 1) % LANES * width;
        }
        const long block = step / size * size;
        const bf16* const next = block + size < keys ? value_block(key0 + block + size)
                                 : after > 0         ? key_block(key0 + tile)
                                                     : later;
        few_sums(t.rows, scores + first, tile, rows, last - first, width, ahead(value_block(key0 + block), next), s.out);
      }
    });
  }

  // The keys of the first block that a task reads.
  const bf16* first_keys(const Task& t) const {
    const long from = first_visible(position(t, 0)) / tile * tile;
    return c.key_block<bf16>(block_of(t, std::max(from, std::max(0L, t.part) * PART)), t.head);
  }

  // The sums of a task over one part, in the fastest way for its rows. `next`: the task that this thread is likely to
  // take next, or null.
  void run_part(const Task& t, long part, State s, const Task* next) {
    if (c.tiles && t.rows <= FEW)
      run_part_of_few(t, part, s, next ? first_keys(*next) : nullptr);
    else if (c.tiles)
      run_part_on_tiles(t, part, s);
    else
      c.wide ? run_part<float>(t, part, s) : run_part<bf16>(t, part, s);
  }

  // Divides the sums by the totals, which include the sinks, and writes the rows of the output.
  void finish(const Task& t, State s) {
    for (long r = 0; r < t.rows; r++) {
      float scale = 1.f;
      if (a.sinks) {
        const float sink = a.sinks[head(t, r)], m = std::max(s.top[r], sink);
        scale = std::exp(s.top[r] - m);
        s.total[r] = s.total[r] * scale + std::exp(sink - m);
      }
      scale /= s.total[r];
      const long at = (element(t, r) * a.heads + head(t, r)) * c.value_dim;
      const float* o = s.out + r * c.value_pad;
      for (long d = 0; d < c.value_dim; d++)
        a.wide_query ? put((float*)a.out + at + d, o[d] * scale) : put((bf16*)a.out + at + d, o[d] * scale);
    }
  }

  // Runs a whole task. One of few rows may be done by two threads; a longer one takes its turn before it computes.
  void run(const Task& t, const Task* next, Turn& turn) {
    if (t.rows > FEW && !turn.mine()) return;
    load_query(t);
    const long from = first_visible(position(t, 0)) / PART, to = position(t, t.rows - 1) / PART;
    run_part(t, from, state, from < to ? nullptr : next);
    for (long part = from + 1; part <= to && !turn.lost(); part++) {
      run_part(t, part, part_state, part < to ? nullptr : next);
      state.merge(part_state, t.rows, c.value_pad);
    }
    if (turn.taken() || turn.mine()) finish(t, state);
  }
};

}  // namespace
