// The recurrence of layers with a state: for each head a matrix that decays, is corrected and is read with each token.
// Columns of a matrix do not depend on each other, so a task has a few columns of one head over all tokens of a span.
#include <algorithm>

#include "exports.h"
#include "scratch.h"
#include "spans.h"
#include "vec.h"

namespace {

constexpr int VECTORS = 2;  // of columns in a task: with 128 rows they fit the first cache
constexpr long COLUMNS = VECTORS * LANES;
constexpr long WORTHWHILE = 1 << 16;  // numbers of states to advance that pay for waking another thread

struct Columns {
  const Recurrence& r;
  const Span& span;
  long head, column, width;  // columns column .. column + width - 1 of a head

  F16 read(const float* p, int n) const { return n < full() ? load(p + n * LANES) : load_some(p + n * LANES, rest(n)); }

  void write(float* p, int n, F16 v) const {
    n < full() ? store(p + n * LANES, v) : store_some(p + n * LANES, v, rest(n));
  }

  float* place(long slot) const { return r.pool + ((slot * r.heads + head) * r.keys) * r.values + column; }

  // One token of row `row`. `state` is [keys, COLUMNS].
  void token(float* state, long row) const {
    const long own = row * r.heads + head, group = row * r.groups + head * r.groups / r.heads;
    const float *k = r.key + group * r.keys, *q = r.query + group * r.keys;
    const float* decay = r.decay + own * r.decays;
    const long step = r.decays > 1;
    F16 delta[VECTORS], sums[VECTORS] = {};
    for (int n = 0; n < VECTORS; n++) delta[n] = read(r.value + own * r.values + column, n);
    if (r.part) {
      F16 known[VECTORS] = {};
      for (long i = 0; i < r.keys; i++) {
        const F16 kept = splat(decay[i * step]), key = splat(k[i]);
        for (int n = 0; n < VECTORS; n++) {
          float* const p = state + i * COLUMNS + n * LANES;
          const F16 s = load(p) * kept;
          known[n] += s * key;
          store(p, s);
        }
      }
      for (int n = 0; n < VECTORS; n++) delta[n] = (delta[n] - known[n]) * splat(r.part[own]);
    }
    for (long i = 0; i < r.keys; i++) {
      const F16 kept = splat(r.part ? 1.f : decay[i * step]), key = splat(k[i]), query = splat(q[i]);
      for (int n = 0; n < VECTORS; n++) {
        float* const p = state + i * COLUMNS + n * LANES;
        const F16 s = load(p) * kept + delta[n] * key;
        sums[n] += s * query;
        store(p, s);
      }
    }
    for (int n = 0; n < VECTORS; n++) write(r.out + own * r.values + column, n, sums[n]);
  }

  void run() const {
    static thread_local Scratch scratch;
    float* const state = scratch.take(r.keys * COLUMNS);
    const float* const before = place(span.source);
    for (long i = 0; i < r.keys; i++)
      for (int n = 0; n < VECTORS; n++) store(state + i * COLUMNS + n * LANES, read(before + i * r.values, n));
    for (long t = 0; t < span.length; t++) token(state, span.first + t);
    float* const after = place(span.target);
    for (long i = 0; i < r.keys; i++)
      for (int n = 0; n < VECTORS; n++) write(after + i * r.values, n, load(state + i * COLUMNS + n * LANES));
  }

 private:
  long full() const { return width / LANES; }
  long rest(int n) const { return std::min(LANES, std::max(0L, width - n * LANES)); }
};

}  // namespace

void recur(const Recurrence* recurrence, const int64_t* spans, long count, int threads) {
  const Recurrence& r = *recurrence;
  const long tiles = (r.values + COLUMNS - 1) / COLUMNS, numbers = r.heads * r.keys * r.values;
  over_spans(spans, count, r.heads * tiles, numbers, WORTHWHILE, threads, [&](const Span& span, long part) {
    const long column = part % tiles * COLUMNS;
    Columns{r, span, part / tiles, column, std::min(COLUMNS, r.values - column)}.run();
  });
}
