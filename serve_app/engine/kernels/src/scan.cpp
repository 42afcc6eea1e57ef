// The recurrence of Mamba. Channels do not depend on each other, so a task has a few channels over all tokens of a span.
#include "scan.h"

#include <algorithm>

#include "exports.h"
#include "scratch.h"
#include "spans.h"
#include "vec.h"

namespace {

constexpr long CHANNELS = 16;  // of a task
constexpr long WORTHWHILE = 1 << 13;  // numbers of states to advance that pay for waking another thread

struct Channels {
  const Scan& r;
  const Span& span;
  long channel, count;  // channels channel .. channel + count - 1

  float* place(long slot) const { return r.pool + (slot * r.channels + channel) * r.states; }

  void run() const {
    static thread_local Scratch scratch;
    const long width = whole_lines(r.states);
    float* const state = scratch.take(2 * count * width);
    float* const rates = state + count * width;
    for (long c = 0; c < count; c++)
      for (long n = 0; n < r.states; n += LANES) {
        store(state + c * width + n, read(place(span.source) + c * r.states, n));
        store(rates + c * width + n, read(r.rates + (channel + c) * r.states, n));
      }
    for (long t = 0; t < span.length; t++) token(state, rates, width, span.first + t);
    for (long c = 0; c < count; c++)
      for (long n = 0; n < r.states; n += LANES)
        store_some(place(span.target) + c * r.states + n, load(state + c * width + n), std::min(LANES, r.states - n));
  }

 private:
  // Numbers n .. n + 15 of p [states]; 0 after its end.
  F16 read(const float* p, long n) const {
    return n + LANES <= r.states ? load(p + n) : load_some(p + n, r.states - n);
  }

  void token(float* state, const float* rates, long width, long row) const {
    const float *x = r.x + row * r.channels + channel, *step = r.step + row * r.channels + channel;
    F16 sums[CHANNELS] = {};
    for (long n = 0; n < r.states; n += LANES) {
      const F16 into = read(r.into + row * r.states, n), out_of = read(r.out_of + row * r.states, n);
      for (long c = 0; c < count; c++) {
        float* const p = state + c * width + n;
        const F16 s = load(p) * exp(step[c] * load(rates + c * width + n)) + step[c] * x[c] * into;
        sums[c] += s * out_of;
        store(p, s);
      }
    }
    for (long c = 0; c < count; c++) r.out[row * r.channels + channel + c] = sum(sums[c]);
  }
};

}  // namespace

void scan(const Scan* scan, const int64_t* spans, long count, int threads) {
  const Scan& r = *scan;
  const long parts = (r.channels + CHANNELS - 1) / CHANNELS;
  over_spans(spans, count, parts, r.channels * r.states, WORTHWHILE, threads, [&](const Span& span, long part) {
    const long channel = part * CHANNELS;
    Channels{r, span, channel, std::min(CHANNELS, r.channels - channel)}.run();
  });
}
