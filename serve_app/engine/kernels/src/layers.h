// A decoder layer and a step: the arguments of `run_layers` in exports.h.
#pragma once
#include <cstdint>

#include "delta.h"
#include "experts.h"
#include "linear.h"
#include "normalise.h"

struct Layer {
  Linear qkv, out, gate_up, down;
  // Before attention, of what it adds, before the MLP, of what it adds; weights [width] or null.
  Norm norm_in, norm_attended, norm_mid, norm_gated;
  const float *q_norm, *k_norm;           // null, or [dim]; if `whole`, [heads, dim] and [kv_heads, dim]
  const Mixture* mixture;                 // null, or what takes the place of gate_up and down, which then are empty
  const Delta* delta;                     // null, or what takes the place of attention; `projected` and `out` are not read
  long heads, window, gelu;               // window 0: none; gelu 1: gates by GELU, 0: by SiLU
  long gated;                             // 1: behind q, qkv has gates of attention's outputs [heads, dim]
  long whole, parallel, rotary;           // parallel 1: the MLP takes what attention takes; rotary: which factors
  float eps_head, scale, softcap, added;  // softcap 0: none; added: times what attention and MLP add
};

// Spans of rows that do not depend on each other (see spans.h).
struct Wave {
  const int64_t* spans;  // [4, count]
  long count;
};

struct Step {
  float* states;           // [rows, width]: the residual stream, changed in place
  const float* const* cos;  // [kinds of factors], each [rows, dim / 2]
  const float* const* sin;
  const int64_t* slots;    // [rows]: where the cache keeps each row, block * block_size + offset
  const int32_t* start;    // [sequences + 1]: sequence s has the rows start[s] .. start[s + 1] - 1
  const int32_t* wanted;   // [sequences + 1], or null: of the last layer, only the last wanted[s + 1] - wanted[s] rows of
                           // sequence s are computed. They are then the first of `states`, in the order of sequences
  const int32_t* length;   // [sequences]: tokens in the cache, this step's included
  const int32_t* tables;   // [sequences, table_width]: blocks of each sequence
  const Wave* waves;       // of layers with a delta rule, one after the other: every row is in one span
  long rows, sequences, table_width, wave_count;
};
