// Every function of the library that Python calls. exports.py lists the same functions with Python's types, structs.py
// the same structures. The build compares both with the headers, and fails if they differ.
//
// `threads` is the largest number of threads that a call may use. Pointers lead to contiguous memory.
#pragma once
#include "attention.h"
#include "cache.h"
#include "convolution.h"
#include "delta.h"
#include "experts.h"
#include "layers.h"
#include "linear.h"
#include "recurrence.h"
#include "scan.h"

#pragma GCC visibility push(default)
extern "C" {

// weight [n, k], float32 if `wide`, else bfloat16 -> panels of the same type (see panels.h).
void pack_weight(const void* weight, void* packed, long n, long k, int wide, int threads);

// What pack_compact wants to know of weight [n, k]: the high bytes of each panel's codes [ceil(n / 16), 16], and the number
// of its exceptions [ceil(n / 16)] (see compact.h).
void choose_codes(const bf16* weight, uint8_t* codes, int64_t* exceptions, long n, long k, int threads);

// weight [n, k] -> the same in twelve bits. `packed` has its codes, and the numbers of its first exceptions, already; a
// panel has room for one exception more than it has.
void pack_compact(const bf16* weight, void* packed, long n, long k, int threads);

// Whether products read such weights as fast as their memory comes: 1 or 0.
int compact_is_fast();

// codes [n, k] from -127 to 127, scales [n] -> a weight for INT8 (see int8_product.h).
void pack_int8(const int8_t* codes, const float* scales, void* packed, long n, long k, int threads);

// The same for INT4 (see int4_product.h): groups [n, ceil(k / 16), 2] have the step and the least of sixteen codes.
// Each code is q * step - least for a q from 0 to 15.
void pack_int4(const int8_t* codes, const uint8_t* groups, const float* scales, void* packed, long n, long k,
               int threads);

// x [m, inputs] float32 -> y [m, outputs], float32 if `wide_out`, else bfloat16. The number of inputs is even.
void linear(const Linear* linear, const float* x, void* y, long m, int wide_out, int threads);

// x [count, m, inputs] float32 -> y [count, m, outputs] float32, by `count` linears of one shape and product.
void linears(const Linear* linears, long count, const float* x, float* y, long m, int threads);

// How fast a product of bfloat16 weights is on this machine: the rank of a faster product is higher. 0: not available.
int product_rank(long product);

// residual [t, n] += scale * after(delta [t, n]), unless delta is null; then out [t, n] = before(residual). A norm of a
// null weight changes nothing. delta may change.
void add_norm(float* residual, float* delta, const Norm* after, float scale, const Norm* before, float* out, long t,
              long n, int threads);

// qkv [t, heads + 2 kv_heads, dim]: normalises the heads of q and k where their weights [dim] are not null, and rotates
// them by cos and sin [t, dim / 2]. q stays in place; k and v go to the cache at slots [t], and k may change in place.
// If `whole`, a norm is one over all heads of q, or of k, and its weights are [heads, dim] or [kv_heads, dim].
void rope_and_cache(float* qkv, const float* cos, const float* sin, const float* q_norm, const float* k_norm,
                    float eps, const Cache* cache, const int64_t* slots, long t, long heads, long whole, int threads);

// key [t, kv_heads, key_dim] and value [t, kv_heads, value_dim] -> the cache at slots [t]. value: null if it is latent.
void write_cache(const float* key, const float* value, const Cache* cache, const int64_t* slots, long t, int threads);

// gate_up [t, 2n] -> out [t, n] = silu(gate) * up, or gelu_tanh(gate) * up.
void gated(const float* gate_up, float* out, long t, long n, int gelu, int threads);

// heads [t, n] *= sigmoid(gates [t, n]), whose rows are `apart` floats from one another.
void gate_heads(float* heads, const float* gates, long t, long n, long apart, int threads);

// Runs the tokens of `count` spans of rows, which do not depend on each other. spans [4, count] has the first row of each,
// its length, the slot of its state before and the slot for its state after.
void recur(const Recurrence* recurrence, const int64_t* spans, long count, int threads);
void convolve(const Convolution* convolution, const int64_t* spans, long count, int threads);
void scan(const Scan* scan, const int64_t* spans, long count, int threads);
void run_delta(const Delta* delta, const int64_t* spans, long count, int threads);

// x [n] bfloat16 -> out [n] float32.
void widen(const bf16* x, float* out, long n, int threads);

// The largest value of each row of x [t, n], n at least 1, and the first place that has it. For a row with NaN, its
// first NaN and the place of that NaN.
void highest(const float* x, float* values, int64_t* places, long t, long n, int threads);

// Paged causal attention, as `attention` describes it.
void attend(const Attention* attention, const Cache* cache, int threads);

// Runs one step through `count` decoder layers, each with a cache, or null where it does not attend. A step has decodes,
// chunks of prefills, or both.
void run_layers(const Layer* layers, const Cache* const* caches, long count, const Step* step, int threads);

// out [rows, outputs] = the sum of what each row of x [rows, inputs] gets from the experts that it chooses, times their
// weights. The number of inputs is even.
void run_experts(const Experts* experts, const Choices* choices, const float* x, float* out, int threads);

// The same for the experts that the mixture's router chooses, and for what its rows share. `shared` [rows, outputs]: the outputs
// of the shared expert if the caller has computed them, else null.
void run_mixture(const Mixture* mixture, const float* x, const float* shared, float* out, long rows, int threads);

// From now on, run_layers adds to `seconds`, by Part (see laps.h), what it takes. Null: no more. One thread may run
// layers meanwhile.
void time_parts(double* seconds);

// The number of tasks so far that a second thread finished because the first one had lost its core.
long tasks_taken_over();

// For tests: from now on, one thread at a time acts as if it had lost its core, at the moment that `whom` names (see
// Preempted in turn.h). Returns how many threads have done so since the last call.
long simulate_preemption(long whom);

// A thread of its own writes to each page of `count` pieces of memory, at begins [count], of sizes [count] in bytes. What
// the memory holds, or gets meanwhile, stays as it is. The pieces are touched side by side, from their first bytes to
// their last. The first `at_once` bytes are touched without a break, for `at_once_ns` of the thread's time at most; the
// others while no kernel runs, and in a small part of the time while some do. The thread keeps in progress [2] how many
// bytes of each piece, from its first, are touched, and the nanoseconds that the system took for a MiB of late, 0 before
// it took any.
void* start_touching(const int64_t* begins, const int64_t* sizes, long count, long at_once, long at_once_ns,
                     int64_t* progress);

// Ends the thread of start_touching, after all is touched if `finish`, else at once.
void end_touching(void* touching, int finish);
}
#pragma GCC visibility pop
