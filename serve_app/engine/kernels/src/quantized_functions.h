// The functions of a product of quantised weights.
#pragma once
#include "product_functions.h"
#include "grouped_product.h"
#include "quantized_product.h"

namespace {

template <class Weight>
QuantizedRows rows_of(const Linear& l, const float* inputs, long rows) {
  return QuantizedRows(inputs, rows, l.inputs, !std::is_same_v<Weight, Int8Weight>);
}

template <class Weight>
Weight weight_of(const Linear& l) {
  return Weight(l.weight, l.outputs, l.inputs);
}

template <class Weight, bool ADD, class Y>
void multiply(const Linear& l, const float* x, Y* y, long m, int threads) {
  multiply_quantized<ADD>(weight_of<Weight>(l), rows_of<Weight>(l, x, m), l.bias, y, l.outputs, threads);
}

template <class Weight>
constexpr ProductFunctions quantized_functions() {
  return {
      [](const Linear& l, long rows) { return rows_of<Weight>(l, nullptr, rows).room(); },
      [](const Linear& l, const float* x, float* inputs, long row) {
        put_codes(weight_of<Weight>(l), x, l.inputs, row, rows_of<Weight>(l, inputs, row + 1));
      },
      multiply<Weight, false, float>,
      multiply<Weight, true, float>,
      multiply<Weight, false, bf16>,
      [](const Linear& l, const float* x, const Linear&, float* y, float*, long m, bool gelu, int threads) {
        multiply_quantized_gated(weight_of<Weight>(l), rows_of<Weight>(l, x, m), l.bias, y, l.outputs / 2, gelu, threads);
        return false;
      },
  };
}

}  // namespace
