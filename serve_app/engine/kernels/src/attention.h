// The arguments of attention, and attention as a part of a larger program of threads.
#pragma once
#include "cache.h"

struct Attention {
  const void* query;      // [t, heads, key_dim], query_row and query_head apart; float32 if wide_query, else bfloat16
  void* out;              // [t, heads, value_dim], tokens out_row apart; float32 if wide_out, else bfloat16
  const int32_t* start;   // [sequences + 1]: sequence s has the rows start[s] .. start[s + 1] - 1
  const int32_t* length;  // [sequences]: tokens in the cache, the rows included
  const int32_t* tables;  // [sequences, table_width]: blocks of each sequence
  const float* sinks;     // [heads] or null
  long sequences, table_width, heads, query_row, query_head, wide_query, out_row, wide_out, window;  // window 0: none
  float scale, softcap;                                                                              // softcap 0: none
};

// Floats of memory that `attend_all` needs as `room`, for the parts of long contexts.
long attention_room(const Attention& attention, const Cache& cache, int threads);

// Computes attention of all sequences, shared between the threads of the program that the caller is in.
void attend_all(const Attention& attention, const Cache& cache, float* room, int threads);
