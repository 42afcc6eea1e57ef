// Products in float32, with weights of float32 or of bfloat16, which are widened as they are used.
#include "product_functions.h"
#include "vector_product.h"

namespace {

// Calls product(weight) with the layer's weight of W, in its form.
template <class W, class F>
void with_weight(const Linear& l, F&& product) {
  if constexpr (std::is_same_v<W, bf16>)
    with_half_weight(l, product);
  else
    product(whole_panels((const float*)l.weight, l.inputs));
}

template <class W, bool ADD, class Y>
void multiply_floats(const Linear& l, const float* x, Y* y, long m, int threads) {
  with_weight<W>(l, [&](const auto& weight) {
    multiply<ADD>(InputRows<float>{x, l.inputs, l.inputs}, weight, l.bias, y, m, l.outputs, threads);
  });
}

template <class W>
bool gate_floats(const Linear& l, const float* x, const Linear&, float* y, float*, long m, bool gelu, int threads) {
  const long n = l.outputs / 2;
  with_weight<W>(l, [&](const auto& weight) {
    multiply_gated(InputRows<float>{x, l.inputs, l.inputs}, weight, l.bias, y, m, n, n, gelu, threads);
  });
  return false;
}

template <class W>
constexpr ProductFunctions FUNCTIONS{nullptr, nullptr, multiply_floats<W, false, float>, multiply_floats<W, true, float>,
                                     multiply_floats<W, false, bf16>, gate_floats<W>};

}  // namespace

const ProductFunctions floats_product = FUNCTIONS<float>, widened_product = FUNCTIONS<bf16>;
