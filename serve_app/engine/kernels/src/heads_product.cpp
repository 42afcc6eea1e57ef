// The product of q, k and v for many rows on tile registers. Heads are normalised, rotated and written to where they
// belong between the steps of the next block, so that k and v never go through memory as float32.
#include "cache_rows.h"
#include "quantized_many.h"
#include "rotary.h"

namespace {

// Finishes the sums of heads of 2 V vectors, which are V pairs of panels.
template <int V>
class HeadsFinish {
 public:
  HeadsFinish(const Heads& heads, const float* bias, long rows) : heads_(heads), bias_(bias), rows_(rows) {}

  void operator()(const float* sums, long apart, long row, long pair, long pairs) {
    const Factors<V> factors(heads_, row);
    const long block = heads_.slots[row] / cache().block_size, offset = heads_.slots[row] % cache().block_size;
    for (long i = 0; i < pairs; i += V) {
      Head<V> head;
      for (int j = 0; j < V; j++) {
        head.low[j] = vector(sums + i * apart, apart, pair + i, j);
        head.high[j] = vector(sums + i * apart, apart, pair + i, V + j);
      }
      const long index = (pair + i) / V, key = index - heads_.heads, value = key - cache().kv_heads;
      if (key < 0) {
        head.turn(heads_.q_norm, heads_.eps, factors);
        head.put(heads_.qkv + row * heads_.width + index * DIM);
      } else if (value < 0) {
        head.turn(heads_.k_norm, heads_.eps, factors);
        cache().in_codes() ? keep_key<int8_t>(head, row, i / V, block, key)
                           : keep_key<bf16>(head, row, i / V, block, key);
      } else {
        cache().in_codes() ? keep_value<int8_t>(head, block, value, offset)
                           : keep_value<bf16>(head, block, value, offset);
      }
    }
  }

 private:
  static constexpr long DIM = 2 * V * LANES;

  const Cache& cache() const { return heads_.cache; }

  // Vector j of a head: panel j of those from `pair` on, with the bias.
  F16 vector(const float* sums, long apart, long pair, int j) const {
    return load(sums + j / 2 * apart + j % 2 * LANES) + bias_at(bias_, 2 * pair + j);
  }

  // Keeps the key of a row until its run of neighbouring slots ends, and then writes the run. A run also ends with a
  // block of rows, as another task may have the next block.
  template <class T>
  void keep_key(const Head<V>& head, long row, long kept, long block, long index) {
    T* const keys = (T*)keys_ + kept * LANES * DIM;
    long& count = counts_[kept];
    const int64_t* const slot = heads_.slots + row;
    const long offset = *slot % cache().block_size;
    head.keep(keys + count++ * DIM, cache().template key_scales<T>(block, index) + offset);
    const bool goes_on = row + 1 < rows_ && (row + 1) % BLOCK && (*slot + 1) % LANES && slot[1] == *slot + 1;
    if (goes_on) return;
    T* const to = cache().template key_block<T>(block, index) + (offset + 1 - count) * TOGETHER<T>;
    write_columns(keys, DIM, count, to, cache().block_size);
    count = 0;
  }

  template <class T>
  void keep_value(const Head<V>& head, long block, long index, long offset) const {
    head.keep(cache().template value_block<T>(block, index) + offset * cache().value_pad,
              cache().template value_scales<T>(block, index) + offset);
  }

  const Heads heads_;
  const float* const bias_;
  const long rows_;
  long counts_[GROUPED / V] = {};                      // keys that wait, for each head of a group
  alignas(64) bf16 keys_[GROUPED * 2 * LANES * LANES];  // [heads of a group, sixteen rows, DIM]
};

template <int V, class Weight>
void multiply_quantized_heads(const Weight& weight, const Linear& l, const float* inputs, const Heads& heads, long rows,
                              int threads) {
  const QuantizedRows x(inputs, rows, l.inputs, l.product == INT4);
  multiply_many_quantized<GROUPED>(weight, x, l.outputs / (2 * LANES), V, threads, neighbours(l.outputs / LANES),
                                   HeadsFinish<V>(heads, l.bias, rows));
}

template <int V, class Weight>
void multiply_heads(const Weight& weight, const Linear& l, const float* inputs, const Heads& heads, long rows,
                    int threads) {
  multiply_many<Bf16Step, GROUPED>(ManyRows((const bf16*)inputs, rows, padded_inputs(l.inputs, false) / BF16_INPUTS),
                                   l.outputs / (2 * LANES), V, threads,
                                   panels_ahead(weight, neighbours(l.outputs / LANES)),
                                   HeadsFinish<V>(heads, l.bias, rows));
}

template <int V>
bool multiply_heads(const Linear& l, const float* inputs, const Heads& heads, long rows, int threads) {
  const long n = l.outputs, k = l.inputs;
  if (l.product == INT8)
    multiply_quantized_heads<V>(Int8Weight(l.weight, n, k), l, inputs, heads, rows, threads);
  else if (l.product == INT4)
    multiply_quantized_heads<V>(Int4Weight(l.weight, n, k), l, inputs, heads, rows, threads);
  else if (l.compact)
    multiply_heads<V>(CompactWeight(l.weight, n, k), l, inputs, heads, rows, threads);
  else
    multiply_heads<V>(whole_panels((const bf16*)l.weight, k), l, inputs, heads, rows, threads);
  return true;
}

}  // namespace

bool project_heads(const Linear& l, const float* inputs, const Heads& heads, long rows, int threads) {
  const bool on_tiles = l.product == TILES || (have_int_tiles() && (l.product == INT8 || l.product == INT4));
  if (!on_tiles || rows <= BLOCK || heads.whole || heads.cache.element == sizeof(float)) return false;
  switch (heads.dim()) {
    case 32: return multiply_heads<1>(l, inputs, heads, rows, threads);
    case 64: return multiply_heads<2>(l, inputs, heads, rows, threads);
    case 128: return multiply_heads<4>(l, inputs, heads, rows, threads);
    default: return false;
  }
}
