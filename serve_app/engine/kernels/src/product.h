// The ways in which a layer, or attention, multiplies.
#pragma once

// How a product is computed. Sums are float32, and the order of a row's sums does not depend on the other rows.
enum Product : long {
  FLOATS,   // float32 weights
  WIDENED,  // bfloat16 weights, widened to float32 as they are used
  PAIRS,    // bfloat16 weights and inputs, two inputs at a time (AVX512-BF16)
  TILES,    // bfloat16 weights and inputs, a tile at a time (AMX)
  INT8,     // int8 weights with a scale for each output, inputs rounded to int8 (see int8_product.h)
  INT4,     // the same with weights of four bits, and a step and a least for every sixteen (see int4_product.h)
  GROUPED4,  // codes of four bits with a scale and a zero for each group of inputs, inputs as above (see grouped_product.h)
  GROUPED8,  // the same with codes of eight bits
};
