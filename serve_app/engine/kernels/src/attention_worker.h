// Attention of a few rows, as decodes have them, and of any number of rows in float32: one task over the keys of one part,
// or a group of tasks over all parts.
//
// Softmax is computed online, over tiles of keys. Tiles and parts begin at fixed positions of a sequence, and a tile
// that a row cannot see leaves the row's state unchanged, bit for bit. So a row's result depends neither on the other
// rows nor on the chunks in which its sequence was computed.
#pragma once
#include "attention_few.h"
#include "attention_latent.h"
#include "attention_shared.h"
#include "attention_softmax.h"
#include "attention_task.h"
#include "attention_vectors.h"
#include "pool.h"
#include "scratch.h"

namespace {

// Fetches `count` elements into the second-level cache, which holds the next tile beside the one in use.
template <class T>
INLINE void prefetch(const T* p, long count) {
  const char* const bytes = (const char*)p;
  for (long i = 0; i < count * (long)sizeof(T); i += 64) __builtin_prefetch(bytes + i, 0, 2);
}

class Worker : Places {
 public:
  // `shared`: what is known of keys that decodes share; null: nothing.
  explicit Worker(const Attention& a, const Cache& c, const SharedStates* shared = nullptr)
      : Places(a, c), shared(shared) {
    static thread_local Scratch scratch;
    const long row = whole_lines(c.key_dim) + tile + 2 * state_row(c);
    query = scratch.take(ROWS * row + tile * (c.key_dim + c.value_pad + 2) + LANES * c.value_pad);
    scores = query + ROWS * whole_lines(c.key_dim);
    wide_keys = scores + ROWS * tile, wide_values = wide_keys + tile * c.key_dim;
    key_scales = wide_values + tile * c.value_pad, value_scales = key_scales + tile;
    latent_rows = value_scales + tile;
    state = state_at(latent_rows + LANES * c.value_pad, ROWS);
    part_state = state_at(state.top + ROWS * state_row(c), ROWS);
  }

  // Copies the queries of a task, times the scale, in the form that its products take.
  void load_query(const Task& t) {
    for (long r = 0; r < t.rows; r++) positions[r] = position(t, r);
    queries(t, [&](long r, long d, F16 q, long some) {
      const long at = r * c.key_dim + d;
      if (c.product == PAIRS)
        store((bf16*)query + at, q);
      else if (some < LANES)
        store_some(query + at, q, some);
      else
        store(query + at, c.product == TILES ? rounded(q) : q);
    });
  }

  // Scales, caps and masks the scores of keys key0 .. key0 + keys - 1, replaces them by their weights, and shrinks the
  // sums of earlier keys.
  template <Weights FORM>
  void softmax(const Task& t, long key0, long keys, State s) {
    const long padded = (keys + LANES - 1) / LANES * LANES;
    if (c.in_codes()) load_scales(t, key0, keys, unseen(t, key0), padded, key_scales, value_scales);
    const Scales scales = c.in_codes() ? Scales{key_scales, value_scales} : Scales{};
    const SoftmaxTile<FORM> now{scores, tile, padded, scales, nullptr, nullptr};
    for (long r = 0; r < t.rows; r++) {
      now.finish(r, a.softcap);
      now.do_row(r, {first_visible(positions[r]) - key0, std::min(keys, positions[r] + 1 - key0)}, s, c.value_pad);
    }
  }

  // The sums of a task over the keys of one part -> s, in float32; T is the type of the cache. It copies each tile.
  template <class T>
  void run_part_of_many(const Task& t, long part, State s) {
    s.reset(t.rows, c.value_pad);
    const long size = c.block_size;
    const auto key_block = [&](long key) { return c.key_block<T>(block_of(t, key), t.head); };
    const auto value_block = [&](long key) { return c.value_block<T>(block_of(t, key), t.head); };
    tiles_of(t, part, [&](long key0, long keys, long after) {
      const long width = (keys + LANES - 1) / LANES * LANES;
      for (long k = 0; k < width; k += LANES)
        widen_keys(key_block(key0 + k) + (key0 + k) % size * TOGETHER<T>, size, wide_keys + k, tile, c.key_dim);
      product<false>(t.rows, query, c.key_dim, wide_keys, tile, c.key_dim, scores, tile, width);
      for (long k = tile; k < tile + std::min(tile, after); k += size)
        prefetch(key_block(key0 + k), size * c.key_dim);
      softmax<Weights::FLOATS>(t, key0, keys, s);
      const long seen = unseen(t, key0);
      for (long k = 0; k < keys; k += size) {
        const long lo = std::max(0L, seen - k), hi = std::min(size, keys - k);
        if (lo >= hi) continue;
        if (c.latent()) {
          for (long i = lo / LANES * LANES; i < hi; i += LANES) {
            latent_values(key_block(key0 + k) + i * TOGETHER<T>, size, c.value_pad, (T*)latent_rows);
            widen((const T*)latent_rows, c.value_pad, wide_values + (k + i) * c.value_pad, c.value_pad, LANES, c.value_pad);
          }
          continue;
        }
        const T* rows = value_block(key0 + k) + lo * c.value_pad;
        widen(rows, c.value_pad, wide_values + (k + lo) * c.value_pad, c.value_pad, hi - lo, c.value_pad);
      }
      if (seen < keys)
        product<true>(t.rows, scores + seen, tile, wide_values + seen * c.value_pad, c.value_pad, keys - seen, s.out,
                      c.value_pad, c.value_pad);
    });
  }

  // The same for so few rows that most of the work would be to copy keys and values, by a way of attention_few.h. It
  // reads the cache block by block and fetches the next block; after the last block, the block at `later` if not null.
  template <class Way>
  void run_part_of_few(const Task& t, long part, State s, const void* later) {
    using T = typename Way::Cached;
    using Factor = typename Way::Factor;
    const long from = shared ? shared->end(t, part) : 0;
    from > 0 ? shared->take(t, part, s) : s.reset(t.rows, c.value_pad);
    const long size = c.block_size, width = c.value_pad, weight_row = tile * sizeof(float) / sizeof(Factor);
    const auto key_block = [&](long key) { return c.key_block<T>(block_of(t, key), t.head); };
    const auto value_block = [&](long key) { return c.value_block<T>(block_of(t, key), t.head); };
    tiles_of(t, part, [&](long key0, long keys, long after) {
      if (SCALE<T>) fetch_scales(t, key0, keys);
      for (long k = 0; k < keys; k += size) {
        const T* const next = k + size < keys ? key_block(key0 + k + size) : value_block(key0);
        const long some = (std::min(size, keys - k) + LANES - 1) / LANES * LANES;
        few_scores<Way>(t.rows, (const Factor*)query, c.key_dim, key_block(key0 + k), size, some, next, scores + k, tile);
      }
      softmax<Way::FORM>(t, key0, keys, s);
      const long seen = unseen(t, key0);
      for (long step = seen / BF16_INPUTS * BF16_INPUTS; step < keys; step += BF16_INPUTS) {
        // Keys go in pairs. Where one of a pair is outside of the visible keys, its weight is 0, and the value of the
        // visible one is read in its place.
        const long first = std::max(step, seen / 2 * 2), last = std::min(step + BF16_INPUTS, (keys + 1) / 2 * 2);
        const T* rows[BF16_INPUTS];
        for (long k = first; k < last;) {
          const T* const lanes = value_block(key0 + k) + (key0 + k) / LANES * LANES % size * width;
          for (const long end = std::min(last, (k / LANES + 1) * LANES); k < end; k++)
            rows[k - first] = lanes + std::clamp(k, seen, keys - 1) % LANES * width;
        }
        const long block = step / size * size;
        const T* const next = block + size < keys ? value_block(key0 + block + size)
                              : after > 0         ? key_block(key0 + tile)
                                                  : (const T*)later;
        few_sums<Way>(t.rows, (const Factor*)scores + first, weight_row, rows, last - first, width,
                      ahead(value_block(key0 + block), next), s.out);
      }
    }, from);
  }

  // The keys of the first block that a task reads; null, if it reads none of its first part.
  const void* first_keys(const Task& t) const {
    const long part = std::max(t.part, first_part(t)), end = shared ? shared->end(t, part) : 0;
    const long from = std::max({part * PART, first_visible(position(t, 0)) / tile * tile, end});
    if (from > position(t, t.rows - 1)) return nullptr;
    return (const char*)c.keys + (block_of(t, from) * c.kv_heads + t.head) * c.key_bytes();
  }

  // The sums of a task over one part, in the fastest way for its rows. `next`: the task that this thread is likely to
  // take next, or null.
  void run_part(const Task& t, long part, State s, const Task* next) {
    const void* const later = next ? first_keys(*next) : nullptr;
    with_type(c, [&](auto cached) {
      using T = decltype(cached);
      if constexpr (!std::is_same_v<T, float>) {  // float32 is not multiplied in pairs
        if (c.product == TILES) return run_part_of_few<AsTiles<T>>(t, part, s, later);
        if (c.product == PAIRS) return run_part_of_few<InPairs<T>>(t, part, s, later);
      }
      !few(t) ? run_part_of_many<T>(t, part, s) : run_part_of_few<InFloats<T>>(t, part, s, later);
    });
  }

  // Runs whole tasks. Those of few rows may be done by two threads; a longer one takes its turn before it computes.
  // `next`: the task that this thread is likely to take next, or null.
  void run(const TaskGroup& tasks, const Task* next, Turn& turn) {
    if (tasks.first->rows > FEW && !turn.mine()) return;
    State sums = state;
    for (const Task& t : tasks) {
      run(t, &t + 1 < tasks.end() ? &t + 1 : next, sums, turn);
      if (turn.lost()) return;
      sums = sums.from(t.rows, c.value_pad);
    }
    if (!turn.taken() && !turn.mine()) return;
    sums = state;
    for (const Task& t : tasks) {
      finish(t, sums);
      sums = sums.from(t.rows, c.value_pad);
    }
  }

 private:
  // The sums of a whole task -> s, unless another thread has the turn meanwhile.
  void run(const Task& t, const Task* next, State s, const Turn& turn) {
    load_query(t);
    const long from = first_part(t), to = last_part(t);
    run_part(t, from, s, from < to ? nullptr : next);
    for (long part = from + 1; part <= to && !turn.lost(); part++) {
      run_part(t, part, part_state, part < to ? nullptr : next);
      s.merge(part_state, t.rows, c.value_pad);
    }
  }

  // Fetches the scales of a tile, which are read after all of its keys.
  INLINE_MEMBER void fetch_scales(const Task& t, long key0, long keys) const {
    for (long k = 0; k < keys; k += c.block_size) {
      const long block = block_of(t, key0 + k);
      prefetch(c.key_scales<int8_t>(block, t.head), c.block_size);
      prefetch(c.value_scales<int8_t>(block, t.head), c.block_size);
    }
  }

  const SharedStates* const shared;
  float *query, *scores, *wide_keys, *wide_values;
  float* latent_rows;                // [16, value_pad]: latent values of sixteen keys, of the type of the cache
  float *key_scales, *value_scales;  // [tile]: of the keys and values of a tile, if they are codes
  State state, part_state;
  long positions[ROWS];  // of each row of the task, in its sequence
};

}  // namespace
