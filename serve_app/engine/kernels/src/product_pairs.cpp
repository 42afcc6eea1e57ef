// Products of weights and inputs of bfloat16, two inputs at a time (AVX512-BF16).
#include "product_functions.h"
#include "register_product.h"

namespace {

InputRows<bf16> rows_of(const Linear& l, const float* x) { return {(const bf16*)x, l.inputs, row_apart(l.inputs)}; }

long room(const Linear& l, long rows) { return rows * row_apart(l.inputs) / 2; }

void round_row(const Linear& l, const float* x, float* inputs, long row) {
  const long k = l.inputs;
  bf16* const to = (bf16*)inputs + row * row_apart(k);
  long i = 0;
  for (; i + LANES <= k; i += LANES) store(to + i, load(x + i));
  if (i < k) store_some(to + i, load_some(x + i, k - i), k - i);
}

template <bool ADD, class Y>
void multiply_pairs(const Linear& l, const float* x, Y* y, long m, int threads) {
  with_half_weight(l, [&](const auto& weight) { multiply<ADD>(rows_of(l, x), weight, l.bias, y, m, l.outputs, threads); });
}

bool gate(const Linear& l, const float* x, const Linear& next, float* y, float* room, long m, bool gelu, int threads) {
  const long n = l.outputs / 2, apart = rounded_row(next);
  with_half_weight(l, [&](const auto& weight) {
    if (apart)
      multiply_gated(rows_of(l, x), weight, l.bias, (bf16*)room, m, n, apart, gelu, threads);
    else
      multiply_gated(rows_of(l, x), weight, l.bias, y, m, n, n, gelu, threads);
  });
  return apart != 0;
}

}  // namespace

const ProductFunctions pairs_product{
    room, round_row, multiply_pairs<false, float>, multiply_pairs<true, float>, multiply_pairs<false, bf16>, gate};
