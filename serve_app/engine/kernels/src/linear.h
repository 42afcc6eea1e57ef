// A linear layer with packed weights. A decoder stores its outputs, adds them to the residual stream or gates them.
#pragma once
#include "product.h"

struct Linear {
  const void* weight;  // from pack_weight, pack_compact, pack_int8 or pack_int4, or packed by Python (see grouped_product.h)
  const float* bias;   // padded to whole panels, or null
  long outputs, inputs;
  long product;  // a Product
  long compact;  // whether the weight is from pack_compact: bfloat16 in twelve bits (see compact.h)
};

// The inputs of a product lie in the form that the product takes: float32 rows, bfloat16 rows or bfloat16 tiles.
//
// Floats of memory for `rows` rows of inputs.
long inputs_room(const Linear& linear, long rows);

// Writes row `row` of the inputs: x [inputs] in the layer's form.
void put_row(const Linear& linear, const float* x, float* inputs, long row);

// Elements of bfloat16 from one row of inputs to the next, where the product takes rows of bfloat16; 0 where it does not.
long rounded_row(const Linear& linear);

// x [rows, inputs] in the layer's form: x itself if that is the form, else in `room`.
const float* take_inputs(const Linear& linear, const float* x, float* room, long rows, int threads);

// `inputs` of `rows` rows -> y [rows, outputs].
void project(const Linear& linear, const float* inputs, float* y, long rows, int threads);

// y [rows, outputs] += the projection of `inputs`.
void add_projection(const Linear& linear, const float* inputs, float* y, long rows, int threads);

// act(gate) * value [rows, outputs / 2] in the form of `next`, whose inputs they are: in y [rows, outputs / 2] or in
// `room`. The first half of the outputs are gates, the other half are values; outputs / 2 is a multiple of sixteen. act
// is GELU in its tanh form if `gelu`, else SiLU.
const float* project_gated(const Linear& linear, const float* inputs, const Linear& next, float* y, float* room,
                           long rows, bool gelu, int threads);
