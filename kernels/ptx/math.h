// Single instructions of arithmetic that C++ has no name for.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_75. 2^x, relative error about 2^-22; 2^-inf is 0, and what would be subnormal is 0.
__device__ inline float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sm_75. a b + c of two numbers at once.
__device__ inline uint32_t fma_rn_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// sm_80. The same.
__device__ inline uint32_t fma_rn_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace attune::ptx
