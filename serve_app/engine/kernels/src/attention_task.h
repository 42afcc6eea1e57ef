// A task of attention: some rows of one sequence and one head of keys. A row is a token and a head of queries.
#pragma once
#include "attention.h"
#include "attention_state.h"

namespace {

constexpr long TILE = 64;  // keys whose scores are held at once, at least one block; twice as many in pairs
constexpr long ROWS_AHEAD = 12;  // queries are fetched so many rows before they are read
constexpr long FEW = 8;    // up to this many rows, keys and values are read in place, not copied first

// `head`: a head of keys. `first`, `rows`: rows of (token, query head of the group), counted in the sequence.
struct Task {
  long sequence, head, first, rows, part;  // part -1: all
};

// Neighbouring tasks that a thread takes together: one of any number of rows, or some of few rows each.
struct TaskGroup {
  const Task* first;
  long count, rows;

  // Whether a task may come behind those of the group, whose states are kept side by side.
  bool takes(const Task& t) const { return first->rows <= FEW && t.rows <= FEW && rows + t.rows <= ROWS; }
  const Task* begin() const { return first; }
  const Task* end() const { return first + count; }
};

// Where the rows of a task lie in the batch and in their sequence, and where its keys lie in the cache.
struct Places {
  const Attention& a;
  const Cache& c;
  const long group, tile;

  Places(const Attention& a, const Cache& c)
      : a(a),
        c(c),
        group(a.heads / c.kv_heads),
        tile(std::max(1L, (c.in_pairs() ? 2 : 1) * TILE / c.block_size) * c.block_size) {}

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

  // Whether a task reads its keys and values in place. Latent values have to be copied.
  bool few(const Task& t) const { return t.rows <= FEW && !c.latent(); }

  // The first and the last part that the rows of a task see.
  long first_part(const Task& t) const { return first_visible(position(t, 0)) / PART; }
  long last_part(const Task& t) const { return position(t, t.rows - 1) / PART; }

  // Calls visit(first key, number of keys, number of keys left) for the tiles of keys that a task reads of one part.
  // `from`: the first key of a tile, where others have read the tiles before it.
  template <class F>
  void tiles_of(const Task& t, long part, F&& visit, long from = 0) const {
    const long end = std::min(position(t, t.rows - 1) + 1, (part + 1) * PART);
    from = std::max({from, part * PART, first_visible(position(t, 0)) / tile * tile});
    for (long key0 = from; key0 < end; key0 += tile)
      visit(key0, std::min(tile, end - key0), std::max(0L, end - key0 - tile));
  }

  // The block of the cache that has a key.
  long block_of(const Task& t, long key) const { return a.tables[t.sequence * a.table_width + key / c.block_size]; }
  // The number of keys at the start of a tile that no row of the task may see. Their slots may hold old values of
  // another sequence.
  long unseen(const Task& t, long key0) const { return std::max(0L, first_visible(position(t, 0)) - key0); }

  // Copies the scales of one tile of a cache of codes to keys_to and values_to [padded, a multiple of sixteen]. Those
  // of the first `unseen` values, and of all behind the last one of `keys`, become 0.
  void load_scales(const Task& t, long key0, long keys, long unseen, long padded, float* keys_to,
                   float* values_to) const {
    for (long k = 0; k < keys; k += LANES) {
      const long block = block_of(t, key0 + k), offset = (key0 + k) % c.block_size;
      store(keys_to + k, load(c.key_scales<int8_t>(block, t.head) + offset));
      store(values_to + k, load(c.value_scales<int8_t>(block, t.head) + offset));
    }
    std::fill(keys_to + keys, keys_to + padded, 0.f);
    std::fill(values_to, values_to + std::min(unseen, padded), 0.f);
    std::fill(values_to + keys, values_to + padded, 0.f);
  }

  // Calls put(row, feature, sixteen numbers of the query times the scale, how many of them are features) for all rows
  // and features of a task.
  template <class F>
  void queries(const Task& t, F&& put) const {
    const auto place = [&](long r) { return element(t, r) * a.query_row + head(t, r) * a.query_head; };
    const long bytes = a.wide_query ? sizeof(float) : sizeof(bf16);
    for (long r = 0; r < t.rows; r++) {
      if (const long later = r + ROWS_AHEAD; later < t.rows)
        for (long at = 0; at < c.key_dim * bytes; at += 64)
          __builtin_prefetch((const char*)a.query + place(later) * bytes + at, 0, 2);
      const long at = place(r);
      for (long d = 0; d < c.key_dim; d += LANES) {
        const long some = std::min(LANES, c.key_dim - d);
        const auto read = [&](auto* p) { return a.scale * (some == LANES ? load(p) : load_some(p, some)); };
        put(r, d, a.wide_query ? read((const float*)a.query + at + d) : read((const bf16*)a.query + at + d), some);
      }
    }
  }

  // The place of a row in the output, in elements.
  long output(const Task& t, long row) const { return element(t, row) * a.out_row + head(t, row) * c.value_dim; }

  // Divides the sums by the totals, which include the sinks, and writes the rows of the output.
  void finish(const Task& t, State s) const {
    for (long r = 0; r < t.rows; r++) {
      float scale = 1.f, total = sum(load(s.total + r * LANES));
      if (a.sinks) {
        const float sink = a.sinks[head(t, r)], m = std::max(s.top[r], sink);
        scale = std::exp(s.top[r] - m);
        total = total * scale + std::exp(sink - m);
      }
      scale /= total;
      const long at = output(t, r);
      const float* const o = s.out + r * c.value_pad;
      const auto write = [&](auto* to) {
        long d = 0;
        for (; d + LANES <= c.value_dim; d += LANES) store(to + d, load(o + d) * scale);
        if (d < c.value_dim) store_some(to + d, load(o + d) * scale, c.value_dim - d);
      };
      a.wide_out ? write((float*)a.out + at) : write((bf16*)a.out + at);
    }
  }
};

}  // namespace
