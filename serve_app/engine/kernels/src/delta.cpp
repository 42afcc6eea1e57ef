// The middle of a layer with a gated delta rule. A task has one head over all tokens of a span, a few tokens at a time: what
// it needs between its steps stays in the caches. A row's result depends on its sequence alone.
#include "delta.h"

#include <algorithm>

#include "exports.h"
#include "normalise.h"
#include "scratch.h"
#include "spans.h"

namespace {

constexpr long TOKENS = 16;  // that a task takes at a time
constexpr int VECTORS = REGISTERS >= 32 ? 4 : REGISTERS >= 8 ? 2 : 1;  // of columns that advance together
constexpr long WORTHWHILE = 1 << 16;  // numbers of matrices to advance that pay for waking another thread

// A token of N vectors of columns of a matrix [keys, values], which goes from `from` to `to`, each with rows of `apart`.
template <int N>
INLINE void advance(const float* from, long from_apart, float* to, long to_apart, const float* key, const float* query,
                    long keys, float decay, float part, float overlap, const float* value, float* out) {
  F16 known[N], asked[N];
  for (int n = 0; n < N; n++) known[n] = asked[n] = F16{};
  for (long i = 0; i < keys; i++) {
    const F16 k = splat(key[i]), q = splat(query[i]);
    for (int n = 0; n < N; n++) {
      const F16 s = load(from + i * from_apart + n * LANES);
      known[n] += s * k, asked[n] += s * q;
    }
  }
  F16 delta[N];
  for (int n = 0; n < N; n++) {
    delta[n] = (load(value + n * LANES) - known[n] * decay) * part;
    store(out + n * LANES, asked[n] * decay + delta[n] * overlap);
  }
  for (long i = 0; i < keys; i++) {
    const F16 k = splat(key[i]);
    for (int n = 0; n < N; n++)
      store(to + i * to_apart + n * LANES, load(from + i * from_apart + n * LANES) * decay + delta[n] * k);
  }
}

INLINE float dot(const float* x, const float* y, long n) {
  F16 total = {};
  for (long i = 0; i < n; i += LANES) total += load(x + i) * load(y + i);
  return sum(total);
}

// x [n] with a length of `length`.
INLINE void set_length(float* x, long n, float length) {
  const F16 factor = splat(length / std::sqrt(dot(x, x, n) + 1e-6f));
  for (long i = 0; i < n; i += LANES) store(x + i, load(x + i) * factor);
}

struct Head {
  const Delta& d;
  const Span& span;
  const long head;

  void run() const {
    static thread_local Scratch scratch;
    const long matrix = d.keys * d.values;
    float* const query = scratch.take(matrix + TOKENS * (2 * d.keys + 2 * d.values));
    float* const key = query + TOKENS * d.keys;
    float* const value = key + TOKENS * d.keys;
    float* const made = value + TOKENS * d.values;
    float* const matrices = made + TOKENS * d.values;  // by columns: [columns, keys, VECTORS * LANES]
    float decay[TOKENS], part[TOKENS], overlap[TOKENS];
    for (long begin = 0; begin < span.length; begin += TOKENS) {
      const long count = std::min(TOKENS, span.length - begin);
      for (long i = 0; i < count; i++) {
        float *const q = query + i * d.keys, *const k = key + i * d.keys;
        convolve(begin + i, group() * d.keys, d.keys, q);
        convolve(begin + i, (d.groups + group()) * d.keys, d.keys, k);
        convolve(begin + i, 2 * d.groups * d.keys + head * d.values, d.values, value + i * d.values);
        set_length(q, d.keys, 1.f / std::sqrt((float)d.keys));
        set_length(k, d.keys, 1.f);
        overlap[i] = dot(q, k, d.keys);
        const float* const gates = row(begin + i) + channels() + d.heads * d.values;
        part[i] = 1.f / (1.f + std::exp(-gates[head]));
        const float step = gates[d.heads + head] + d.biases[head];
        decay[i] = std::exp(d.rates[head] * (std::max(step, 0.f) + std::log1p(std::exp(-std::fabs(step)))));
      }
      for (long column = 0; column < d.values; column += VECTORS * LANES) {
        float* const kept = matrices + column * d.keys;
        const long vectors = std::min<long>(VECTORS, (d.values - column) / LANES);
        for (long i = 0; i < count; i++) {
          const bool first = begin + i == 0, last = begin + i + 1 == span.length;
          const float* const from = first ? place(span.source) + column : kept;
          float* const to = last ? place(span.target) + column : kept;
          const auto go = [&](auto number) {
            constexpr int N = decltype(number)::value;
            advance<N>(from, first ? d.values : N * LANES, to, last ? d.values : N * LANES, key + i * d.keys,
                       query + i * d.keys, d.keys, decay[i], part[i], overlap[i], value + i * d.values + column,
                       made + i * d.values + column);
          };
          if (vectors == VECTORS)
            go(std::integral_constant<int, VECTORS>());
          else
            for_rest(vectors, go);
        }
      }
      for (long i = 0; i < count; i++) finish(begin + i, made + i * d.values);
    }
    keep_inputs();
  }

 private:
  template <class Go>
  static void for_rest(long vectors, Go&& go) {
    switch (vectors) {
      case 3: return go(std::integral_constant<int, 3>());
      case 2: return go(std::integral_constant<int, 2>());
      default: go(std::integral_constant<int, 1>());
    }
  }

  long group() const { return head * d.groups / d.heads; }
  long channels() const { return 2 * d.groups * d.keys + d.heads * d.values; }
  float* place(long slot) const { return d.pool + (slot * d.heads + head) * d.keys * d.values; }
  const float* row(long t) const {
    return d.projected + (span.first + t) * (channels() + d.heads * (d.values + 2));
  }

  // The inputs of the convolution; those before the span have negative places.
  const float* inputs(long t) const {
    const long past = d.width - 1;
    return t < 0 ? d.windows + (span.source * past + past + t) * channels() : row(t);
  }

  // Outputs [n] of the convolution from `channel` on.
  void convolve(long t, long channel, long n, float* to) const {
    for (long i = channel; i < channel + n; i += LANES) {
      F16 total = load(inputs(t - d.width + 1) + i) * load(d.factors + i);
      for (long w = 1; w < d.width; w++)
        total += load(inputs(t - d.width + 1 + w) + i) * load(d.factors + w * channels() + i);
      store(to + i - channel, total * sigmoid(total));
    }
  }

  void finish(long t, float* made) const {
    float* const out = d.out + ((span.first + t) * d.heads + head) * d.values;
    const float* const gates = row(t) + channels() + head * d.values;
    normalise(made, d.norm, made, d.values, d.eps);
    for (long i = 0; i < d.values; i += LANES) {
      const F16 gate = load(gates + i);
      store(out + i, load(made + i) * (gate * sigmoid(gate)));
    }
  }

  // The last inputs of the head's values, and with the first head of a group those of its queries and keys.
  void keep_inputs() const {
    const long past = d.width - 1, each = d.heads / d.groups;
    for (long w = 0; w < past; w++) {
      const float* const from = inputs(span.length - past + w);
      float* const to = d.windows + (span.target * past + w) * channels();
      const auto keep = [&](long channel, long n) { std::copy_n(from + channel, n, to + channel); };
      keep(2 * d.groups * d.keys + head * d.values, d.values);
      if (head % each) continue;
      keep(group() * d.keys, d.keys), keep((d.groups + group()) * d.keys, d.keys);
    }
  }
};

}  // namespace

void run_delta(const Delta* delta, const int64_t* spans, long count, int threads) {
  const Delta& d = *delta;
  over_spans(spans, count, d.heads, d.heads * d.keys * d.values, WORTHWHILE, threads,
             [&](const Span& span, long head) { Head{d, span, head}.run(); });
}
