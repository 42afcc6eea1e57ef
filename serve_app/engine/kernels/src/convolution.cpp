// The short convolution of layers with a state. Channels do not depend on each other, so a task has a few channels over all
// tokens of a span. A row's sums do not depend on where its span begins.
#include "convolution.h"

#include <algorithm>

#include "exports.h"
#include "scratch.h"
#include "spans.h"
#include "vec.h"

namespace {

constexpr long CHANNELS = 128;  // of a task
constexpr long WORTHWHILE = 1 << 15;  // outputs that pay for waking another thread

template <class T>
struct Channels {
  const Convolution& c;
  const Span& span;
  long channel, count;  // channels channel .. channel + count - 1

  // The inputs of a token; those before the span have negative places.
  const T* inputs(long place) const {
    const long past = c.width - 1;
    const T* const row = place < 0 ? (const T*)c.pool + (span.source * past + past + place) * c.channels
                                   : (const T*)c.x + (span.first + place) * c.channels;
    return row + channel;
  }

  void run() const {
    static thread_local Scratch scratch;
    const long past = c.width - 1;
    float* const factors = scratch.take(c.width * LANES);
    for (long i = 0; i < count; i += LANES) {
      const long some = std::min(LANES, count - i);
      for (long j = 0; j < some; j++)
        for (long k = 0; k < c.width; k++)
          factors[k * LANES + j] = to_float(((const T*)c.weight)[(channel + i + j) * c.width + k]);
      const F16 bias = c.bias ? load_some((const T*)c.bias + channel + i, some) : F16{};
      for (long t = 0; t < span.length; t++) {
        F16 sum = read(inputs(t - past) + i, some) * load(factors);
        for (long k = 1; k < c.width; k++) sum += read(inputs(t - past + k) + i, some) * load(factors + k * LANES);
        if (c.bias) sum += bias;
        if (c.silu) sum = sum * sigmoid(sum);
        write((T*)c.out + (span.first + t) * c.channels + channel + i, sum, some);
      }
    }
    for (long k = 0; k < past; k++)
      memcpy((T*)c.pool + (span.target * past + k) * c.channels + channel, inputs(span.length - past + k), count * sizeof(T));
  }

 private:
  static F16 read(const T* p, long some) { return some == LANES ? load(p) : load_some(p, some); }
  static void write(T* p, F16 v, long some) { some == LANES ? store(p, v) : store_some(p, v, some); }
};

template <class T>
void convolve(const Convolution& c, const int64_t* spans, long count, int threads) {
  const long parts = (c.channels + CHANNELS - 1) / CHANNELS;
  over_spans(spans, count, parts, c.channels, WORTHWHILE, threads, [&](const Span& span, long part) {
    const long channel = part * CHANNELS;
    Channels<T>{c, span, channel, std::min(CHANNELS, c.channels - channel)}.run();
  });
}

}  // namespace

void convolve(const Convolution* convolution, const int64_t* spans, long count, int threads) {
  const Convolution& c = *convolution;
  c.wide ? convolve<float>(c, spans, count, threads) : convolve<bf16>(c, spans, count, threads);
}
