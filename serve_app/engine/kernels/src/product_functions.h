// What a product does for a linear layer. Each product is defined in a file of its own, and the files compile side by side.
#pragma once
#include "compact.h"
#include "linear.h"
#include "panels.h"

struct ProductFunctions {
  // Floats of memory for `rows` rows of inputs in the product's form; null: inputs are float32 rows, as they come.
  long (*room)(const Linear&, long rows);

  // Writes row `row` of the inputs: x [inputs] in the product's form. Null as above.
  void (*put_row)(const Linear&, const float* x, float* inputs, long row);

  // x [m, inputs], in the product's form -> y [m, outputs] = x W^T + b: stored, added to what is there, or rounded.
  void (*store)(const Linear&, const float* x, float* y, long m, int threads);
  void (*add)(const Linear&, const float* x, float* y, long m, int threads);
  void (*round)(const Linear&, const float* x, bf16* y, long m, int threads);

  // act(gate) * value, as in project_gated of linear.h. Returns whether `room` has the outputs, in the form of `next`;
  // else y has them.
  bool (*gate)(const Linear&, const float* x, const Linear& next, float* y, float* room, long m, bool gelu, int threads);
};

extern const ProductFunctions floats_product, widened_product, pairs_product, tiles_product, int8_product, int4_product,
    grouped4_product, grouped8_product;

// Elements from a row of bfloat16 to the next: an odd number of cache lines, so that the rows of a block lie in different
// sets of the first-level cache.
INLINE long row_apart(long k) { return padded_inputs(k, false) | BF16_INPUTS; }

// Calls product(weight) with a layer's weight of bfloat16, in its form.
template <class F>
static void with_half_weight(const Linear& l, F&& product) {
  if (l.compact)
    product(CompactWeight(l.weight, l.outputs, l.inputs));
  else
    product(whole_panels((const bf16*)l.weight, l.inputs));
}
