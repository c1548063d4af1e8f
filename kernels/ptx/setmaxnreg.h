// How many registers a warpgroup's threads have: what one hands back, another takes.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_90a
template <int N>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// sm_90a
template <int N>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace attune::ptx
