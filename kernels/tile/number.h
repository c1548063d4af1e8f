// The number formats of device code. fp16 and bf16 are raw bits: NVRTC brings no headers, and none
// is needed.
#pragma once

#include "../params.h"
#include "../ptx/cvt.h"
#include "../ptx/math.h"

namespace attune {

constexpr float kInf = __builtin_bit_cast(float, 0x7f800000);
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLog2eRest = 1.4426950408889634 - kLog2e;  // what float has no room for
constexpr float kLn2 = 0.6931471805599453f;

// The type that holds one element in memory.
template <DType T>
struct StorageOf {
  using type = uint16_t;
};
template <>
struct StorageOf<DType::f32> {
  using type = float;
};
template <DType T>
using Storage = typename StorageOf<T>::type;

template <DType T>
__device__ inline float to_float(Storage<T> x) {
  if constexpr (T == DType::f32)
    return x;
  else if constexpr (T == DType::f16)
    return ptx::cvt_f32_f16(x);
  else
    return __uint_as_float(uint32_t(x) << 16);
}

template <DType T>
__device__ inline Storage<T> from_float(float x) {
  if constexpr (T == DType::f32)
    return x;
  else if constexpr (T == DType::f16)
    return ptx::cvt_rn_f16_f32(x);
  else
    return ptx::cvt_rn_bf16_f32(x);
}

// Two neighbours in one register, `low` at the lower address.
template <DType T>
__device__ inline uint32_t pack(float low, float high) {
  if constexpr (T == DType::bf16)
    return ptx::cvt_rn_bf16x2_f32(high, low);
  else
    return ptx::cvt_rn_f16x2_f32(high, low);
}

// Two numbers of 16 bits at once: a b + c.
template <DType T>
__device__ inline uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  if constexpr (T == DType::bf16)
    return ptx::fma_rn_bf16x2(a, b, c);
  else
    return ptx::fma_rn_f16x2(a, b, c);
}

template <DType T>
__device__ inline const Storage<T>* row_of(const View& v, int64_t b, int64_t h, int64_t s) {
  return static_cast<const Storage<T>*>(v.data) + b * v.stride_b + h * v.stride_h + s * v.stride_s;
}

}  // namespace attune
