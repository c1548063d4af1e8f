// Single instructions of arithmetic that C++ has no name for.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// 2^x, relative error about 2^-22; 2^-inf is 0, and what would be subnormal is 0.
__device__ inline float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace attune::ptx
