// A decoder layer and a step, as `run_layers` takes them.
#pragma once
#include <cstdint>

#include "linear.h"

struct Layer {
  Linear qkv, out, gate_up, down;
  const float *norm_in, *norm_mid;  // [width]
  const float *q_norm, *k_norm;     // [dim] or null
  long heads, window, gelu;         // window 0: none; gelu: the gate's activation, instead of SiLU
  float eps_in, eps_mid, eps_head, scale, softcap;  // softcap 0: none
};

struct Step {
  float* states;           // [rows, width], the residual stream: changed in place
  const float *cos, *sin;  // [rows, dim / 2]
  const int64_t* slots;    // [rows]
  const int32_t* start;    // [sequences + 1]
  const int32_t* length;   // [sequences]
  const int32_t* tables;   // [sequences, table_width]
  long rows, sequences, table_width;
};
