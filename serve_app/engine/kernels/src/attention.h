// What attention is asked, and attention within a program of threads.
#pragma once
#include "cache.h"

struct Attention {
  const void* query;      // [t, heads, key_dim] with strides, `wide_query` float32 or else bfloat16
  void* out;              // [t, heads, value_dim] contiguous, of the same type
  const int32_t* start;   // [sequences + 1]
  const int32_t* length;  // [sequences]
  const int32_t* tables;  // [sequences, table_width]
  const float* sinks;     // [heads] or null
  long sequences, table_width, heads, query_row, query_head, wide_query, window;  // window 0: none
  float scale, softcap;                                                           // softcap 0: none
};

// Floats that `attend_all` needs for the parts of long contexts.
long attention_room(const Attention& attention, const Cache& cache, int threads);

// Attention of all sequences, by the threads of the program that the caller is in.
void attend_all(const Attention& attention, const Cache& cache, float* room, int threads);
