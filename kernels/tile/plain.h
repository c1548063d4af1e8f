// What kernels on CUDA cores share: weights, the marker of a key that adds nothing, and the end of
// a row.
#pragma once

#include "../ptx/math.h"
#include "features.h"

namespace attune {

// The weight of a key that adds nothing: forbidden, or dropped. A zero like any other in a product,
// so the fast path needs no test; but exp2 never gives a negative zero, so the careful path can
// tell it from an allowed key whose weight is too small to see. Only the latter may turn a NaN of V
// into a NaN.
constexpr float kNothing = -0.f;
__device__ inline bool adds_nothing(float weight) { return __float_as_uint(weight) == 0x80000000u; }

// e^(score - max). The difference is rounded once and only then scaled: logits of 2^31 lose
// nothing. A row that saw no key yet has max -inf, and nothing to compare with.
__device__ inline float weight_of(float score, float max) {
  return ptx::ex2_approx((score - (max == -kInf ? 0.f : max)) * kLog2e);
}

// fmaxf passes over NaN. A NaN score comes back as a NaN weight, and spoils the sum as it should.
template <int lanes>
__device__ inline float lanes_max(float x) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

template <int lanes>
__device__ inline float lanes_sum(float x) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// What an accumulator is multiplied with at last: 1/sum, and dropout's 1/(1-p).
template <Problem P>
__device__ inline float last_factor(const KernelArgs& x, float sum) {
  return (P.dropout ? 1 / (1 - x.params.dropout_p) : 1.f) / sum;
}

// No key added anything: 0, whatever the sum is. (It is 0 without an allowed key.)
__device__ inline float last_value(float acc, float factor) {
  return acc == 0 ? 0.f : acc * factor;
}

template <DType T>
__device__ inline Storage<T>* out_row(const View& v, int64_t b, int64_t h, int64_t s) {
  return static_cast<Storage<T>*>(v.data) + b * v.stride_b + h * v.stride_h + s * v.stride_s;
}

template <Problem P>
__device__ inline void store_lse(const KernelArgs& x, int b, int h, int64_t row, float max,
                                 float sum) {
  if constexpr (P.lse)
    *out_row<DType::f32>(x.params.lse, b, h, row) = sum == 0 ? -kInf : max + logf(sum);
}

}  // namespace attune
