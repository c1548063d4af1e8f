// Named barriers, of a part of the block's threads. Number 0 is that of __syncthreads.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_75. Arrives, and waits until `threads` have.
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// sm_75. Arrives alone.
__device__ inline void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace attune::ptx
