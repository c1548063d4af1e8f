// Conversions between number formats. sm_75 has no bf16 instruction: there they are done by hand.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_75
__device__ inline float cvt_f32_f16(uint16_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

// sm_75
__device__ inline uint16_t cvt_rn_f16_f32(float x) {
  uint16_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// sm_80; by hand before it.
__device__ inline uint16_t cvt_rn_bf16_f32(float x) {
#if __CUDA_ARCH__ >= 800
  uint16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

// sm_80; by hand before it.
__device__ inline uint32_t cvt_rn_f16x2_f32(float high, float low) {
#if __CUDA_ARCH__ >= 800
  uint32_t y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return uint32_t(cvt_rn_f16_f32(high)) << 16 | cvt_rn_f16_f32(low);
#endif
}

// sm_80; by hand before it.
__device__ inline uint32_t cvt_rn_bf16x2_f32(float high, float low) {
#if __CUDA_ARCH__ >= 800
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return uint32_t(cvt_rn_bf16_f32(high)) << 16 | cvt_rn_bf16_f32(low);
#endif
}

}  // namespace attune::ptx
