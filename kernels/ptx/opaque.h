// No instructions: what the compiler may no longer know, or no longer move.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// The same number, of which the compiler no longer knows where it came from: what is computed from
// it is computed where it is used, instead of being kept in registers through a loop.
__device__ inline uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Ties values to this point of the program: no read of them moves above a wait for the products
// that write them.
template <int N>
__device__ inline void pin(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

}  // namespace attune::ptx
