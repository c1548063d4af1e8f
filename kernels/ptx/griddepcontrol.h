// Kernels that begin before the one before them has ended. Before 9.0 these do nothing: there a
// kernel begins when all before it is done.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_90. Until the kernel before this one is done, and what it wrote can be seen.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// sm_90. The next kernel may begin, up to its own wait, as soon as every block has said so.
__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace attune::ptx
