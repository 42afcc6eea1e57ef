// y = x W^T + b with W packed in panels, by the product that the layer names. Sums are float32 and in the order of the
// inputs, so that a row's result does not depend on the other rows.
#include "linear.h"

#include "exports.h"
#include "product_functions.h"
#include "scratch.h"
#include "tiles.h"

namespace {

const ProductFunctions& functions(const Linear& l) {
  static constexpr const ProductFunctions* ALL[] = {&floats_product, &widened_product, &pairs_product,
                                                    &tiles_product,  &int8_product,    &int4_product,
                                                    &grouped4_product, &grouped8_product};
  return *ALL[l.product];
}

}  // namespace

long inputs_room(const Linear& l, long rows) {
  const auto room = functions(l).room;
  return room ? room(l, rows) : whole_lines(rows * l.inputs);
}

long rounded_row(const Linear& l) { return l.product == PAIRS ? row_apart(l.inputs) : 0; }

void put_row(const Linear& l, const float* x, float* inputs, long row) {
  if (const auto put = functions(l).put_row)
    put(l, x, inputs, row);
  else
    std::copy(x, x + l.inputs, inputs + row * l.inputs);
}

const float* take_inputs(const Linear& l, const float* x, float* room, long rows, int threads) {
  const auto put = functions(l).put_row;
  if (!put) return x;
  parallel_rows(rows, l.inputs, threads, [&](long first, long last) {
    for (long row = first; row < last; row++) put(l, x + row * l.inputs, room, row);
  });
  return room;
}

void project(const Linear& l, const float* inputs, float* y, long rows, int threads) {
  functions(l).store(l, inputs, y, rows, threads);
}

void add_projection(const Linear& l, const float* inputs, float* y, long rows, int threads) {
  functions(l).add(l, inputs, y, rows, threads);
}

const float* project_gated(const Linear& l, const float* inputs, const Linear& next, float* y, float* room, long m,
                           bool gelu, int threads) {
  if (functions(l).gate(l, inputs, next, y, room, m, gelu, threads)) return room;
  return take_inputs(next, y, room, m, threads);
}

void linears(const Linear* all, long count, const float* x, float* y, long m, int threads) {
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  const long size = whole_lines(inputs_room(*all, m));
  float* const room = scratch.take(count * size);
  parallel(count, threads, [&](long i) {  // each is little work: threads share the linears
    const Alone alone;
    const Linear& l = all[i];
    const float* const inputs = take_inputs(l, x + i * m * l.inputs, room + i * size, m, 1);
    functions(l).store(l, inputs, y + i * m * l.outputs, m, 1);
  });
}

int product_rank(long product) {
  if (product == TILES) return have_tiles() ? 4 : 0;
#ifdef __AVX512BF16__
  // Measured: on Intel with AMX, PAIRS has a quarter of the rate of float instructions. On AMD (Zen 5), PAIRS makes a
  // prefill 1.7 times faster.
  __builtin_cpu_init();
  if (product == PAIRS) return __builtin_cpu_is("amd") ? 3 : 1;
#endif
  return product == WIDENED ? 2 : 0;
}

void linear(const Linear* l, const float* x, void* y, long m, int wide_out, int threads) {
  static thread_local Scratch scratch;  // one for each caller: two threads may call at once
  float* const room = scratch.take(inputs_room(*l, m));
  together(threads, [&] {
    const float* const inputs = take_inputs(*l, x, room, m, threads);
    const ProductFunctions& of = functions(*l);
    wide_out ? of.store(*l, inputs, (float*)y, m, threads) : of.round(*l, inputs, (bf16*)y, m, threads);
  });
}
