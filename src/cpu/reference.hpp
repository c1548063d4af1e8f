// The oracle: attention as attune.h defines it, in float64, by plain loops. Every test and every
// evolved kernel is compared with it.
#pragma once

#include "kernels/params.h"
#include "src/cpu/pool.hpp"

namespace attune::cpu {

// All of these take O(Sk) memory a thread, and throw std::bad_alloc when it is not there, before
// anything is written. The backward pass also takes, where they are asked for, Sk * D doubles a
// thread for dK, Sk * Dv for dV, the size of dMask in doubles, and B * H for dSinks.

// What params has as float32, for calls in float64; 0: as params has it.
struct ExactScalars {
  double scale = 0, softcap = 0;
};

// Writes params.out (rounded to problem.dtype) and params.lse where wanted. Where the dtype is f64,
// so are the mask of that kind, alibi_slopes, sinks, lse, dmask and dsinks.
void reference_forward(const Problem& problem, const Params& params, const Executor& executor,
                       const ExactScalars& scalars = {});

// The same loops in float32: the straightforward implementation whose error sets the tolerance of
// every faster one.
void naive_forward(const Problem& problem, const Params& params, const Executor& executor);

// dQ, dK, dV, dMask, dSinks; reads q, k, v and dout only (the softmax is computed anew).
void reference_backward(const Problem& problem, const Params& params, const GradParams& grads,
                        const Executor& executor, const ExactScalars& scalars = {});

// Where the unrounded result goes, in double and contiguous over problem.batch, heads_q and seq_q
// (the longest sequence; rows past a ragged sequence's end are not touched). Any may be null.
struct Exact {
  double* out = nullptr;  // [b][h][i][dv]
  double* lse = nullptr;  // [b][h][i]
  // [b][h][i]: sum of w(1-w)|x| over the row's weights w, where x is the score; times the scores'
  // relative error and 2 max|V|, it bounds the error of out. A softcap makes large products into
  // small scores but keeps their rounding, so there |x| is at least the score's slope times the
  // size of the product's terms, scale * sum |q_d k_d|.
  double* sensitivity = nullptr;
  double* term_sensitivity = nullptr;  // the same with that slope times that size for |x|
  double* lse_sensitivity = nullptr;   // for lse: sum of w * slope * size
};
void reference_forward_f64(const Problem& problem, const Params& params, const Executor& executor,
                           const Exact& exact);

// The gradients in double, contiguous: dq [b][h][i][d], dk and dv [b][hkv][j][d] over the longest
// sequences, dmask over grads.dmask_shape, dsinks [h]. Any may be null. They are added to.
struct ExactGradients {
  double *dq = nullptr, *dk = nullptr, *dv = nullptr, *dmask = nullptr, *dsinks = nullptr;
};

// `roundings`, of each element: its terms' sizes, times how many roundings of float32 (2^-24) a
// kernel's terms may be off by. Reads dout, dlse and dmask_shape of grads; what is not null in
// `exact` is not null in `roundings`. tensor_cores: kernels that sum products of 16-bit inputs on
// tensor cores, and round P and dS to the inputs' dtype before the products that follow.
void reference_backward_f64(const Problem& problem, const Params& params, const GradParams& grads,
                            const Executor& executor, const ExactGradients& exact,
                            const ExactGradients& roundings, bool tensor_cores = false);

}  // namespace attune::cpu
