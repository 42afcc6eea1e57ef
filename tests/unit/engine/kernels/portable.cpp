// The kernels without Python, for processors and checkers that cannot run Python. Every function of exports.h is compared
// with plain loops in double. All layers in one call are compared bit for bit with calls for each part of a layer, while
// threads act as if they had lost their cores. Prints one line, and exits with 1 if a result is wrong.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <random>
#include <vector>

#include "compact.h"
#include "exports.h"
#include "panels.h"
#include "turn.h"

namespace {

using Floats = std::vector<float>;

constexpr int THREADS = 4;
constexpr long BLOCK = 16, WIDTH = 64, INNER = 48, HEADS = 4, KV_HEADS = 2, DIM = 32, LENGTH = 620, LAYERS = 4;
constexpr long EXPERTS = 6, CHOSEN = 2, OF_EXPERTS = 3, KEPT = 2;  // OF_EXPERTS: groups
constexpr long GROUPS = 2, KEYS = 16, VALUES = 48, PAST = 3;  // of a delta rule with HEADS heads
constexpr long CHANNELS = 2 * GROUPS * KEYS + HEADS * VALUES, MATRIX = HEADS * KEYS * VALUES, SLOTS = 5;
constexpr double EXACT = 1e-4, ROUNDED = 3e-2;  // tolerances for results of order one

std::mt19937 source(0);
int wrong = 0;

Floats randoms(long count) {
  std::normal_distribution<float> normal;
  Floats x(count);
  for (float& v : x) v = normal(source);
  return x;
}

void expect(const char* what, double got, double want, double tolerance) {
  if (std::fabs(got - want) <= tolerance * std::fmax(1, std::fabs(want))) return;
  if (wrong++ < 10) std::printf("%s: %g instead of %g\n", what, got, want);
}

float narrow(float x, bool wide) {
  bf16 b;
  put(&b, x);
  return wide ? x : to_float(b);
}

// Bytes of a number in a cache of codes, or of one that is multiplied by `product`.
long element(long product, bool codes) { return codes ? 1 : product == FLOATS ? 4 : 2; }

// What a cache keeps of rows of DIM numbers.
Floats kept(Floats x, long element) {
  for (float* row = x.data(); row < x.data() + x.size(); row += DIM) {
    float peak = 0;
    for (long d = 0; d < DIM; d++) peak = std::fmax(peak, std::fabs(row[d]));
    for (long d = 0; d < DIM; d++)
      row[d] = element == 1 ? std::nearbyint(row[d] * (127 / peak)) * (peak / 127) : narrow(row[d], element == 4);
  }
  return x;
}

// A random weight [n, k] of the type that `product` takes, as floats and packed.
struct Weight {
  long n, k;
  bool wide;
  Floats values;
  Scratch packed;
  Linear linear;

  Weight(long n, long k, long product) : n(n), k(k), wide(product == FLOATS), values(randoms(n * k)) {
    std::vector<bf16> halves(n * k);
    for (long i = 0; i < n * k; i++) {
      values[i] = narrow(values[i] / std::sqrt((float)k), wide);
      put(&halves[i], values[i]);
    }
    float* const room = packed.take((n + 15) / 16 * 16 * padded_inputs(k, wide));
    pack_weight(wide ? (void*)values.data() : halves.data(), room, n, k, wide, THREADS);
    linear = {room, nullptr, n, k, product};
  }
};

void check_rows(long t, long n) {
  const Floats x = randoms(t * 2 * n), delta = randoms(t * n), weight = randoms(n);
  Floats sums(x.begin(), x.begin() + t * n), normed(t * n), gates(t * n), wide(t * n), tops(t);
  Floats changed = delta;
  const Norm none{nullptr, 0, 0}, before{weight.data(), 0, 1e-6f};
  add_norm(sums.data(), changed.data(), &none, 1, &before, normed.data(), t, n, THREADS);
  std::vector<bf16> halves(t * n);
  for (long i = 0; i < t * n; i++) put(&halves[i], x[i]);
  widen(halves.data(), wide.data(), t * n, THREADS);
  std::vector<int64_t> places(t);
  highest(delta.data(), tops.data(), places.data(), t, n, THREADS);
  for (int gelu = 0; gelu < 2; gelu++) {
    gated(x.data(), gates.data(), t, n, gelu, THREADS);
    for (long r = 0; r < t; r++)
      for (long i = 0; i < n; i++) {
        const double g = x[r * 2 * n + i], up = x[r * 2 * n + n + i];
        const double inner = gelu ? 1.5957691216057308 * (g + 0.044715 * g * g * g) : g;
        expect("gated", gates[r * n + i], g / (1 + std::exp(-inner)) * up, EXACT);
      }
  }
  for (long r = 0; r < t; r++) {
    double squares = 0;
    long best = 0;
    for (long i = 0; i < n; i++) {
      squares += std::pow((double)x[r * n + i] + delta[r * n + i], 2);
      if (delta[r * n + i] > delta[r * n + best]) best = i;
    }
    expect("highest", places[r], best, 0), expect("highest", tops[r], delta[r * n + best], 0);
    for (long i = 0; i < n; i++) {
      const double sum = (double)x[r * n + i] + delta[r * n + i];
      expect("add_norm", normed[r * n + i], sum / std::sqrt(squares / n + 1e-6) * weight[i], EXACT);
      expect("widen", wide[r * n + i], narrow(x[r * n + i], false), 0);
    }
  }
}

// A compact weight of zeros, exceptions and others has the outputs of the whole one, bit for bit.
void check_compact(long product, long rows, long n, long k) {
  const Floats values = randoms(n * k), x = randoms(rows * k);
  std::vector<bf16> weight(n * k);
  for (long i = 0; i < n * k; i++) put(&weight[i], i % 11 ? values[i] : i % 2 ? 0.f : values[i] * 1e30f);
  const long panels = (n + LANES - 1) / LANES, padded = panels * LANES * padded_inputs(k, false);
  std::vector<uint8_t> codes(panels * CODES);
  std::vector<int64_t> exceptions(panels);
  choose_codes(weight.data(), codes.data(), exceptions.data(), n, k, THREADS);
  std::vector<int64_t> firsts(panels + 1);
  for (long j = 0; j < panels; j++) firsts[j + 1] = firsts[j] + exceptions[j] + 1;
  Scratch whole, compact;
  float* const whole_at = whole.take(padded / 2 + 1);
  const long bytes = padded * 3 / 2 + codes.size() + firsts.size() * 8 + firsts.back() * sizeof(Exception);
  float* const compact_at = compact.take(bytes / 4 + 1);
  const CompactWeight parts(compact_at, n, k);
  std::copy(codes.begin(), codes.end(), (uint8_t*)parts.codes);
  std::copy(firsts.begin(), firsts.end(), (int64_t*)parts.firsts);
  pack_weight(weight.data(), whole_at, n, k, 0, THREADS);
  pack_compact(weight.data(), compact_at, n, k, THREADS);
  Floats want(rows * n), got(rows * n);
  const Linear first{whole_at, nullptr, n, k, product, 0}, second{compact_at, nullptr, n, k, product, 1};
  linear(&first, x.data(), want.data(), rows, 1, THREADS);
  linear(&second, x.data(), got.data(), rows, 1, THREADS);
  for (long i = 0; i < rows * n; i++) expect("pack_compact", got[i], want[i], 0);
}

void check_linear(long product, long rows, long n, long k) {
  const Weight w(n, k, product);
  const bool rounds = product == PAIRS || product == TILES;
  const Floats x = randoms(rows * k);
  Floats y(rows * n);
  std::vector<bf16> halves(rows * n);
  linear(&w.linear, x.data(), y.data(), rows, 1, THREADS);
  linear(&w.linear, x.data(), halves.data(), rows, 0, THREADS);
  for (long r = 0; r < rows; r++)
    for (long i = 0; i < n; i++) {
      double sum = 0;
      for (long j = 0; j < k; j++) sum += (double)narrow(x[r * k + j], !rounds) * w.values[i * k + j];
      expect("linear", y[r * n + i], sum, EXACT);
      expect("linear", to_float(halves[r * n + i]), narrow(y[r * n + i], false), 0);
    }
}

// A cache with the blocks of one sequence, out of order.
struct Blocks {
  static constexpr long COUNT = (LENGTH + BLOCK - 1) / BLOCK;
  std::vector<int32_t> table;
  std::vector<int64_t> slots;  // [LENGTH]: the slot of each position
  Floats keys, values;
  Cache cache;

  Blocks(long product, bool codes)
      : keys(COUNT * BLOCK * KV_HEADS * DIM), values(keys), cache{keys.data(), values.data(), KV_HEADS, DIM, DIM, DIM,
                                                                 BLOCK, element(product, codes), product} {
    for (long b = 0; b < COUNT; b++) table.push_back((b * 2 + 1) % COUNT);
    for (long p = 0; p < LENGTH; p++) slots.push_back(table[p / BLOCK] * BLOCK + p % BLOCK);
  }
};

void check_attention(long product, bool codes, long tokens, long window) {
  Blocks blocks(product, codes);
  Floats key = randoms(LENGTH * KV_HEADS * DIM), value = randoms(key.size()), q = randoms(tokens * HEADS * DIM);
  write_cache(key.data(), value.data(), &blocks.cache, blocks.slots.data(), LENGTH, THREADS);
  key = kept(key, blocks.cache.element), value = kept(value, blocks.cache.element);
  const std::vector<int32_t> start{0, (int32_t)tokens}, length{(int32_t)LENGTH};
  Floats out(q.size());
  const Attention a{q.data(), out.data(), start.data(), length.data(), blocks.table.data(), nullptr, 1, blocks.COUNT,
                    HEADS,    HEADS * DIM, DIM, 1, HEADS * DIM, 1, window, 0.2f, 0.f};
  attend(&a, &blocks.cache, THREADS);
  for (long t = 0; t < tokens; t++)
    for (long h = 0; h < HEADS; h++) {
      const long last = LENGTH - tokens + t, kv = h / (HEADS / KV_HEADS);
      std::vector<double> sums(DIM);
      double total = 0;
      for (long p = window ? std::max(0L, last - window + 1) : 0; p <= last; p++) {
        double score = 0;
        for (long d = 0; d < DIM; d++)
          score += (double)q[(t * HEADS + h) * DIM + d] * key[(p * KV_HEADS + kv) * DIM + d];
        const double weight = std::exp(score * 0.2);
        total += weight;
        for (long d = 0; d < DIM; d++) sums[d] += weight * value[(p * KV_HEADS + kv) * DIM + d];
      }
      for (long d = 0; d < DIM; d++)
        expect("attend", out[(t * HEADS + h) * DIM + d], sums[d] / total, blocks.cache.in_pairs() ? ROUNDED : EXACT);
    }
}

// Decodes of different lengths get the bits of each alone; a thread takes the tasks of many together. `shared`: they have the
// same blocks, from the first one on; else each has an order of its own.
void check_decodes(long product, bool codes, long sequences, long count, bool shared) {
  const long tokens = count * BLOCK;
  Floats keys(tokens * KV_HEADS * DIM), values(keys);
  const Cache cache{keys.data(), values.data(), KV_HEADS, DIM, DIM, DIM, BLOCK, element(product, codes), product};
  const Floats key = randoms(keys.size()), value = randoms(keys.size()), q = randoms(sequences * HEADS * DIM);
  std::vector<int64_t> slots(tokens);
  std::vector<int32_t> tables(sequences * count), start(sequences + 1), length(sequences);
  for (long p = 0; p < tokens; p++) slots[p] = p;
  for (long i = 0; i < sequences * count; i++) tables[i] = (i % count + (shared ? 0 : i / count * 3)) % count;
  for (long s = 0; s < sequences; s++) start[s + 1] = s + 1, length[s] = tokens - 37 * s % tokens;
  write_cache(key.data(), value.data(), &cache, slots.data(), tokens, THREADS);
  Floats together(q.size()), alone(q.size());
  const Attention all{q.data(), together.data(), start.data(), length.data(), tables.data(), nullptr, sequences, count,
                      HEADS,    HEADS * DIM, DIM, 1, HEADS * DIM, 1, 0, 0.2f, 0.f};
  attend(&all, &cache, THREADS);
  for (long s = 0; s < sequences; s++) {
    Attention one = all;
    one.query = &q[s * HEADS * DIM], one.out = &alone[s * HEADS * DIM], one.length = &length[s], one.sequences = 1;
    one.tables = &tables[s * count];
    attend(&one, &cache, THREADS);
  }
  for (size_t i = 0; i < alone.size(); i++) expect("attend, decodes", together[i], alone[i], 0);
}

// Experts and one more of another shape, which all rows share, with a router and a gate in float32. The router takes the
// softmax of its outputs, or their sigmoids with a correction and in groups.
struct SampleExperts {
  std::deque<Weight> ups, downs;
  std::vector<Linear> up_linears, down_linears;
  Weight router, gate;
  Floats correction;
  Mixture mixture;

  SampleExperts(long product, bool sigmoid)
      : router(EXPERTS, WIDTH, FLOATS), gate(1, WIDTH, FLOATS), correction(randoms(EXPERTS)) {
    for (long e = 0; e <= EXPERTS; e++) {
      const long inner = e < EXPERTS ? INNER : INNER + 10;
      up_linears.push_back(ups.emplace_back(2 * inner, WIDTH, product).linear);
      down_linears.push_back(downs.emplace_back(WIDTH, inner, product).linear);
    }
    const long groups = sigmoid ? OF_EXPERTS : 1, kept = sigmoid ? KEPT : 1, best = sigmoid ? 2 : 1;
    mixture = {{router.linear, sigmoid ? correction.data() : nullptr, CHOSEN, sigmoid, 1, groups, kept, best, 1.5f},
               {up_linears.data(), down_linears.data(), EXPERTS, 0, 0, 0, 0},
               {&up_linears[EXPERTS], &down_linears[EXPERTS], 1, 0, 0, 0, 0},
               gate.linear};
  }
};

double times(const Weight& w, long row, const double* x) {
  double sum = 0;
  for (long j = 0; j < w.k; j++) sum += x[j] * w.values[row * w.k + j];
  return sum;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void check_mixture(long product, long rows, bool by_sigmoid) {
  const SampleExperts all(product, by_sigmoid);
  const Floats x = randoms(rows * WIDTH);
  Floats out(x.size()), again(x.size()), made(x.size());
  run_mixture(&all.mixture, x.data(), nullptr, out.data(), rows, THREADS);
  const std::vector<int64_t> only(rows);
  const Floats whole(rows, 1.f);
  const Choices shared{only.data(), whole.data(), rows, 1};
  run_experts(&all.mixture.shared, &shared, x.data(), made.data(), THREADS);
  run_mixture(&all.mixture, x.data(), made.data(), again.data(), rows, THREADS);
  for (size_t i = 0; i < out.size(); i++) expect("run_mixture, shared", again[i], out[i], 0);
  for (long r = 0; r < rows; r++) {
    const std::vector<double> row(&x[r * WIDTH], &x[(r + 1) * WIDTH]);
    std::vector<double> scores, keys, sums(OF_EXPERTS), want(WIDTH);
    double total = 0;
    for (long e = 0; e < EXPERTS; e++) {
      const double output = times(all.router, e, row.data());
      scores.push_back(by_sigmoid ? sigmoid(output) : std::exp(output));
      keys.push_back(scores[e] + by_sigmoid * all.correction[e]);
      sums[e / (EXPERTS / OF_EXPERTS)] += keys[e];
    }
    const long least = std::min_element(sums.begin(), sums.end()) - sums.begin();
    for (long e = 0; by_sigmoid && e < EXPERTS; e++)
      if (e / (EXPERTS / OF_EXPERTS) == least) keys[e] = -1e9;
    std::vector<long> chosen;
    for (long i = 0; i < CHOSEN; i++) {
      chosen.push_back(std::max_element(keys.begin(), keys.end()) - keys.begin());
      keys[chosen[i]] = -1e9, total += scores[chosen[i]];
    }
    chosen.push_back(EXPERTS);
    for (const long e : chosen) {
      const double weight = e < EXPERTS ? 1.5 * scores[e] / total : sigmoid(times(all.gate, 0, row.data()));
      std::vector<double> inner(all.downs[e].k);
      for (size_t i = 0; i < inner.size(); i++) {
        const double g = times(all.ups[e], i, row.data());
        inner[i] = g * sigmoid(g) * times(all.ups[e], inner.size() + i, row.data());
      }
      for (long i = 0; i < WIDTH; i++) want[i] += weight * times(all.downs[e], i, inner.data());
    }
    for (long i = 0; i < WIDTH; i++)
      expect("run_mixture", out[r * WIDTH + i], want[i], product == FLOATS ? EXACT : ROUNDED);
  }
}

// The later layers have a norm over all heads, one that is centred, one after attention, and a factor of what they add. The
// second has gates of its heads, the third has experts, the last one has a delta rule.
// A prompt in two chunks, one for tiles of each thread's own, and three more tokens through all layers, in one call and in
// calls for each part of a layer. The last rows alone get the same bits.
void check_layers(long product, bool codes) {
  std::deque<Weight> weights;
  const Floats norm = randoms(WIDTH), head_norm = randoms(DIM), whole_norm = randoms(HEADS * DIM), cos = randoms(LENGTH * DIM / 2), sin = randoms(cos.size());
  const SampleExperts experts(product, true);
  const Floats factors = randoms((PAST + 1) * CHANNELS), rates(HEADS, -1.f), biases = randoms(HEADS);
  Floats windows[2], pools[2];  // of the calls for all layers, and for each part of one
  Delta rules[2];
  for (int i = 0; i < 2; i++) {
    windows[i].resize(SLOTS * PAST * CHANNELS), pools[i].resize(SLOTS * MATRIX);
    rules[i] = {nullptr, factors.data(), rates.data(), biases.data(), norm.data(), nullptr,
                windows[i].data(), pools[i].data(), HEADS, GROUPS, KEYS, VALUES, PAST + 1, 1e-6f};
  }
  std::vector<Layer> layers;
  for (long i = 0; i < LAYERS; i++) {
    const size_t at = weights.size();
    const bool rule = i == 3, gates = i == 1;
    const long outputs = rule ? CHANNELS + HEADS * (VALUES + 2) : ((1 + gates) * HEADS + 2 * KV_HEADS) * DIM;
    weights.emplace_back(outputs, WIDTH, product), weights.emplace_back(WIDTH, HEADS * (rule ? VALUES : DIM), product);
    weights.emplace_back(2 * INNER, WIDTH, product), weights.emplace_back(WIDTH, INNER, product);
    layers.push_back({weights[at].linear, weights[at + 1].linear, weights[at + 2].linear, weights[at + 3].linear,
                      {norm.data(), 0, 1e-6f}, {i ? norm.data() : nullptr, 0, 1e-6f}, {norm.data(), i, 1e-6f},
                      {nullptr, 0, 0}, i ? whole_norm.data() : head_norm.data(),
                      i ? whole_norm.data() : head_norm.data(), i == 2 ? &experts.mixture : nullptr, rule ? &rules[0] : nullptr,
                      HEADS, 0, 0, gates, i, 0, 0, 1e-6f, 0.2f, 0.f, i ? 0.5f : 1.f});
  }
  std::vector<Blocks> one(LAYERS, Blocks(product, codes)), many(LAYERS, Blocks(product, codes));
  std::vector<const Cache*> caches;
  for (auto* set : {&one, &many})
    for (Blocks& b : *set) b.cache.keys = b.keys.data(), b.cache.values = b.values.data();
  for (long i = 0; i < LAYERS; i++) caches.push_back(layers[i].delta ? nullptr : &one[i].cache);
  Floats states = randoms(LENGTH * WIDTH), by_part(states);
  long first = 0, slot = 0;
  for (const long rows : {LENGTH - 73, 70L, 1L, 2L}) {
    const int64_t span[] = {0, rows, slot, slot + 1};
    const Wave wave{span, 1};
    slot++;
    const std::vector<int32_t> start{0, (int32_t)rows}, length{(int32_t)(first + rows)};
    const float *const cos_at = &cos[first * DIM / 2], *const sin_at = &sin[first * DIM / 2];
    const Floats before(&states[first * WIDTH], &states[(first + rows) * WIDTH]);
    Step step{&states[first * WIDTH], &cos_at, &sin_at, &one[0].slots[first], start.data(), nullptr,
              length.data(), one[0].table.data(), &wave, rows, 1, Blocks::COUNT, 1};
    run_layers(layers.data(), caches.data(), LAYERS, &step, THREADS);
    for (const int32_t some : {0L, std::min(3L, rows)}) {
      const int32_t wanted[] = {0, some};
      Floats again = before;
      step.states = again.data(), step.wanted = wanted;
      run_layers(layers.data(), caches.data(), LAYERS, &step, THREADS);
      const float* const last = &states[(first + rows - some) * WIDTH];
      for (long j = 0; j < some * WIDTH; j++) expect("run_layers, some rows", again[j], last[j], 0);
    }
    float* const x = &by_part[first * WIDTH];
    for (long i = 0; i < LAYERS; i++) {
      const Layer& l = layers[i];
      Floats normed(rows * WIDTH), qkv(rows * l.qkv.outputs), heads(rows * l.out.inputs), delta(rows * WIDTH);
      Floats both(rows * 2 * INNER), gates(rows * INNER);
      const Norm none{nullptr, 0, 0};
      add_norm(x, nullptr, &none, 1, &l.norm_in, normed.data(), rows, WIDTH, THREADS);
      linear(&l.qkv, normed.data(), qkv.data(), rows, 1, THREADS);
      if (l.delta) {
        Delta rule = rules[1];
        rule.projected = qkv.data(), rule.out = heads.data();
        run_delta(&rule, span, 1, THREADS);
      } else {
        const long own = HEADS * DIM, others = 2 * KV_HEADS * DIM;
        Floats ungated(rows * (own + others));
        for (long row = 0; row < rows; row++) {
          const float* const from = &qkv[row * l.qkv.outputs];
          std::copy_n(from, own, &ungated[row * (own + others)]);
          std::copy_n(from + l.qkv.outputs - others, others, &ungated[row * (own + others) + own]);
        }
        rope_and_cache(ungated.data(), cos_at, sin_at, l.q_norm, l.k_norm, 1e-6f, &many[i].cache, &many[i].slots[first],
                       rows, HEADS, l.whole, THREADS);
        const Attention a{ungated.data(), heads.data(), start.data(), length.data(), many[i].table.data(), nullptr, 1,
                          Blocks::COUNT, HEADS, own + others, DIM, 1, own, 1, 0, 0.2f, 0.f};
        attend(&a, &many[i].cache, THREADS);
        if (l.gated) gate_heads(heads.data(), &qkv[own], rows, own, l.qkv.outputs, THREADS);
      }
      linear(&l.out, heads.data(), delta.data(), rows, 1, THREADS);
      add_norm(x, delta.data(), &l.norm_attended, l.added, &l.norm_mid, normed.data(), rows, WIDTH, THREADS);
      if (l.mixture) {
        run_mixture(l.mixture, normed.data(), nullptr, delta.data(), rows, THREADS);
      } else {
        linear(&l.gate_up, normed.data(), both.data(), rows, 1, THREADS);
        gated(both.data(), gates.data(), rows, INNER, 0, THREADS);
        linear(&l.down, gates.data(), delta.data(), rows, 1, THREADS);
      }
      add_norm(x, delta.data(), &l.norm_gated, l.added, &none, normed.data(), rows, WIDTH, THREADS);
    }
    first += rows;
  }
  for (size_t j = 0; j < states.size(); j++) expect("run_layers", states[j], by_part[j], 0);
}

void check_touching() {
  std::vector<double> memory(100'000, 1.5), want = memory;
  const int64_t begins[] = {int64_t(memory.data()), int64_t(memory.data() + 50'000)}, sizes[] = {8, 400'000};
  int64_t progress[2] = {};
  for (const bool finish : {false, true}) end_touching(start_touching(begins, sizes, 2, 100, 1'000'000, progress), finish);
  if (memory != want) wrong++, std::printf("touching changed the memory\n");
  if (progress[0] != 400'000) wrong++, std::printf("%ld bytes count as touched\n", long(progress[0]));
}

}  // namespace

int main() {
  std::vector<long> products{FLOATS};
  for (const long product : {WIDENED, PAIRS, TILES})
    if (product_rank(product)) products.push_back(product);
  check_touching();
  for (const long t : {1, 5, 40}) check_rows(t, 39), check_rows(t, 512);
  long held = 0;
  for (const long whom : {NOBODY, OWNER, STAND_IN}) {
    simulate_preemption(whom);
    for (const long product : products) {
      for (const long rows : {1, 5, 17, 35}) check_linear(product, rows, 50, 38), check_linear(product, rows, 400, 64);
      check_linear(product, 150, 40, 650);
      for (const long rows : {1, 7, 300}) check_mixture(product, rows, false), check_mixture(product, rows, true);
      if (product != FLOATS)
        for (const long rows : {1, 9, 17, 35, 70}) check_compact(product, rows, 50, 38), check_compact(product, rows, 100, 640);
      for (const bool codes : {false, true}) {
        for (const long tokens : {1L, 21L, LENGTH})
          check_attention(product, codes, tokens, 0), check_attention(product, codes, tokens, 40);
        for (const long sequences : {6, 60}) check_decodes(product, codes, sequences, 20, true);
        check_decodes(product, codes, 60, 80, false);
        check_layers(product, codes);
      }
    }
    held += simulate_preemption(NOBODY);
  }
  if (held < 50 || tasks_taken_over() < 20) wrong++, std::printf("threads did not lose their cores\n");
  std::printf("%ld products, %ld threads lost their cores, %ld tasks taken over, %d results wrong\n",
              (long)products.size(), held, tasks_taken_over(), wrong);
  return wrong != 0;
}
