// Paged causal attention for decode steps and prefill chunks alike: grouped heads, sliding window, softcap and
// sinks. Softmax is taken online over tiles of keys. Tiles and parts begin at fixed positions of a sequence, and a
// tile that a row cannot see leaves that row's state bit for bit, so a row's result depends neither on the other
// rows nor on how its sequence was cut into chunks.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pool.h"
#include "scratch.h"

namespace {

constexpr float INF = __builtin_inff();
constexpr long TILE = 64;    // keys whose scores are held at once, at least one block
constexpr long PART = 1024;  // keys summed on their own, then merged in order: what threads may share
constexpr long ROWS = 96;    // (token, head) rows that one task works on
constexpr long FEW = 8;      // rows up to which keys and values are read where they lie, not widened first

// c [MR, NV * 16] (+)= a [MR, n] b [n, NV * 16].
template <int MR, int NV, bool ADD, class T>
void small_product(const float* a, long lda, const T* b, long ldb, long n, float* c, long ldc) {
  F16 acc[MR][NV];
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) acc[i][j] = ADD ? load(c + i * ldc + j * LANES) : F16{};
  for (long p = 0; p < n; p++) {
    F16 row[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) row[j] = load(b + p * ldb + j * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < MR; i++) {
      const F16 x = splat(a[i * lda + p]);
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) acc[i][j] += x * row[j];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) store(c + i * ldc + j * LANES, acc[i][j]);
}

template <int MR, bool ADD, class T>
void row_product(const float* a, long lda, const T* b, long ldb, long n, float* c, long ldc, long width) {
  long j = 0;
  for (; j + 4 * LANES <= width; j += 4 * LANES)
    small_product<MR, 4, ADD>(a, lda, b + j, ldb, n, c + j, ldc);
  for (; j + 2 * LANES <= width; j += 2 * LANES)
    small_product<MR, 2, ADD>(a, lda, b + j, ldb, n, c + j, ldc);
  for (; j < width; j += LANES) small_product<MR, 1, ADD>(a, lda, b + j, ldb, n, c + j, ldc);
}

// The same for any number of rows; width is a multiple of 16.
template <bool ADD, class T>
void product(long m, const float* a, long lda, const T* b, long ldb, long n, float* c, long ldc, long width) {
  for (; m >= 6; m -= 6, a += 6 * lda, c += 6 * ldc) row_product<6, ADD>(a, lda, b, ldb, n, c, ldc, width);
  switch (m) {
    case 5: return row_product<5, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 4: return row_product<4, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 3: return row_product<3, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 2: return row_product<2, ADD>(a, lda, b, ldb, n, c, ldc, width);
    case 1: return row_product<1, ADD>(a, lda, b, ldb, n, c, ldc, width);
  }
}

// from [m, n] -> to [m, n] float32, n a multiple of 16.
template <class T>
void widen(const T* from, long from_row, float* to, long to_row, long m, long n) {
  for (long i = 0; i < m; i++)
    for (long j = 0; j < n; j += LANES) store(to + i * to_row + j, load(from + i * from_row + j));
}

// Into the second-level cache, where there is room for a tile while another is worked on.
template <class T>
void prefetch(const T* p, long count) {
  const char* const bytes = (const char*)p;
  for (long i = 0; i < count * (long)sizeof(T); i += 64) __builtin_prefetch(bytes + i, 0, 2);
}

// State of an online softmax: out [rows, value_pad] unnormalised, with the maximum and the sum of each row.
struct State {
  float* out;
  float* top;
  float* total;

  void reset(long rows, long width) {
    std::fill(out, out + rows * width, 0.f);
    std::fill(top, top + rows, -INF);
    std::fill(total, total + rows, 0.f);
  }

  // Fold in what `other` summed over later keys.
  void merge(const State& other, long rows, long width) {
    for (long r = 0; r < rows; r++) {
      if (other.top[r] == -INF) continue;
      const float m = std::max(top[r], other.top[r]);
      const float mine = std::exp(top[r] - m), theirs = std::exp(other.top[r] - m);
      for (long d = 0; d < width; d++)
        out[r * width + d] = out[r * width + d] * mine + other.out[r * width + d] * theirs;
      total[r] = total[r] * mine + other.total[r] * theirs;
      top[r] = m;
    }
  }
};

struct Task {
  long sequence, head, first, rows, part;  // rows of (token, head of the group); part -1: all
  long scratch;                            // index of its partial state, if part >= 0
};

long state_row(const Cache& c) { return c.value_pad + 2; }

State state_at(float* p) { return {p + 2 * ROWS, p, p + ROWS}; }

struct Worker {
  const Attention& a;
  const Cache& c;
  const long group, tile;
  float *query, *scores, *wide_keys, *wide_values;
  State state, part_state;
  long positions[ROWS];  // of the rows of the task

  Worker(const Attention& a, const Cache& c)
      : a(a), c(c), group(a.heads / c.kv_heads), tile(std::max(1L, TILE / c.block_size) * c.block_size) {
    static thread_local Scratch scratch;
    const long row = whole_lines(c.key_dim) + tile + 2 * state_row(c);
    query = scratch.take(ROWS * row + tile * (c.key_dim + c.value_pad));
    scores = query + ROWS * whole_lines(c.key_dim);
    wide_keys = scores + ROWS * tile, wide_values = wide_keys + tile * c.key_dim;
    state = state_at(wide_values + tile * c.value_pad), part_state = state_at(state.top + ROWS * state_row(c));
  }

  long position(const Task& t, long row) const {
    const long tokens = a.start[t.sequence + 1] - a.start[t.sequence];
    return a.length[t.sequence] - tokens + (t.first + row) / group;
  }
  long first_visible(long position) const {
    return a.window ? std::max(0L, position - a.window + 1) : 0;
  }
  long element(const Task& t, long row) const { return a.start[t.sequence] + (t.first + row) / group; }
  long head(const Task& t, long row) const { return t.head * group + (t.first + row) % group; }

  void load_query(const Task& t) {
    for (long r = 0; r < t.rows; r++) {
      positions[r] = position(t, r);
      const long at = element(t, r) * a.query_row + head(t, r) * a.query_head;
      float* q = &query[r * c.key_dim];
      for (long d = 0; d < c.key_dim; d++)
        q[d] = a.scale * (a.wide_query ? ((const float*)a.query)[at + d] : to_float(((const bf16*)a.query)[at + d]));
    }
  }

  // Mask the scores of keys key0 .. key0 + tile - 1, turn them into weights and rescale what was summed so far.
  void soften(const Task& t, long key0, long keys, State s) {
    const long padded = (keys + LANES - 1) / LANES * LANES;
    for (long r = 0; r < t.rows; r++) {
      const long pos = positions[r], lo = std::max(0L, first_visible(pos) - key0);
      const long hi = std::min(keys, pos + 1 - key0);
      float* row = &scores[r * tile];
      if (lo >= hi) {
        std::fill(row, row + padded, 0.f);
        continue;
      }
      if (a.softcap > 0)
        for (long k = 0; k < padded; k += LANES) store(row + k, tanh(load(row + k) / a.softcap) * a.softcap);
      std::fill(row, row + lo, -INF);
      std::fill(row + hi, row + padded, -INF);
      F16 best = splat(-INF);
      for (long k = 0; k < padded; k += LANES) best = max(best, load(row + k));
      const float m = std::max(s.top[r], max(best));
      F16 sums = {};
      for (long k = 0; k < padded; k += LANES) {
        const F16 p = exp(load(row + k) - m);
        store(row + k, p);
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

  template <class T>
  void run_part(const Task& t, long part, State s) {
    s.reset(t.rows, c.value_pad);
    const long last = position(t, t.rows - 1) + 1, begin = first_visible(position(t, 0));
    const long end = std::min(last, (part + 1) * PART), size = c.block_size;
    const int32_t* table = a.tables + t.sequence * a.table_width;
    const auto key_block = [&](long key) { return c.key_block<T>(table[key / size], t.head); };
    const auto value_block = [&](long key) { return c.value_block<T>(table[key / size], t.head); };
    for (long key0 = std::max(part * PART, begin / tile * tile); key0 < end; key0 += tile) {
      const long keys = std::min(tile, end - key0);
      const bool few = t.rows <= FEW;
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
      else if (key0 + tile < end)
        for (long k = tile; k < std::min(2 * tile, end - key0); k += size)
          prefetch(key_block(key0 + k), size * c.key_dim);
      soften(t, key0, keys, s);
      // Keys that nobody here may see are not read: their slots may hold another sequence's remains.
      const long seen = std::max(0L, begin - key0);
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
    }
  }

  void run_part(const Task& t, long part, State s) {
    c.wide ? run_part<float>(t, part, s) : run_part<bf16>(t, part, s);
  }

  // Divide by the sums, sinks included, and write the rows.
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

  void run(const Task& t) {
    load_query(t);
    const long from = first_visible(position(t, 0)) / PART, to = position(t, t.rows - 1) / PART;
    run_part(t, from, state);
    for (long part = from + 1; part <= to; part++) {
      run_part(t, part, part_state);
      state.merge(part_state, t.rows, c.value_pad);
    }
    finish(t, state);
  }
};

}  // namespace

extern "C" void attend(const Attention* attention, const Cache* cache, int threads) {
  const Attention& a = *attention;
  const Cache& c = *cache;
  const long group = a.heads / c.kv_heads;
  std::vector<Task> tasks;
  bool long_ones = false;
  for (long s = 0; s < a.sequences; s++) {
    const long rows = (a.start[s + 1] - a.start[s]) * group;
    long_ones |= a.length[s] > PART;
    for (long h = 0; h < c.kv_heads; h++)
      for (long first = 0; first < rows; first += ROWS)
        tasks.push_back({s, h, first, std::min(ROWS, rows - first), -1, 0});
  }
  if (!long_ones || (long)tasks.size() >= 4 * threads) {
    parallel(tasks.size(), threads, [&](long i) { Worker(a, c).run(tasks[i]); });
    return;
  }
  // Few tasks and long contexts: every part is a task of its own, then merged in the same order as above.
  std::vector<Task> parts;
  std::vector<size_t> begins;
  Worker ruler(a, c);
  for (const Task& t : tasks) {
    begins.push_back(parts.size());
    const long from = ruler.first_visible(ruler.position(t, 0)) / PART, to = ruler.position(t, t.rows - 1) / PART;
    for (long part = from; part <= to; part++) {
      parts.push_back(t);
      parts.back().part = part;
    }
  }
  begins.push_back(parts.size());
  const long size = ROWS * state_row(c);
  std::vector<float> scratch(parts.size() * size);
  auto state_of = [&](size_t i) { return state_at(&scratch[i * size]); };
  parallel(parts.size(), threads, [&](long i) {
    Worker worker(a, c);
    worker.load_query(parts[i]);
    worker.run_part(parts[i], parts[i].part, state_of(i));
  });
  parallel(tasks.size(), threads, [&](long i) {
    for (size_t j = begins[i] + 1; j < begins[i + 1]; j++)
      state_of(begins[i]).merge(state_of(j), tasks[i].rows, c.value_pad);
    Worker(a, c).finish(tasks[i], state_of(begins[i]));
  });
}
