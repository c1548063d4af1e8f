// Products of a warpgroup, four warps together (wgmma): m64nNk16, asynchronous, sums in fp32.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_90a. Registers and shared memory that were written before may be operands.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// sm_90a. Closes the group of the products issued so far.
__device__ inline void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// sm_90a. Until at most N groups are under way.
template <int N>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The descriptor of a matrix in shared memory: rows of 128 bytes, swizzled by their number;
// `leading` bytes lie between panels of 64 columns where the instruction walks over them.
__device__ inline uint64_t wgmma_matrix(uint32_t smem, int leading) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t(leading >> 4) << 16 |
         (smem & 0x3ffff) >> 4;
}

// sm_90a. One struct for every N that a kernel uses comes with the kernel's source
// (src/jit/source.cpp):
//   ss(d, a, b, add): d = a b + (add ? d : 0), both operands in shared memory
//   rs(d, a, b, add): a in registers, as mma_m16n8k16 has it, one m16 tile a warp
// Turned: b's rows are the columns of the product's depth, as V has them.
template <int N, DType T, bool Turned>
struct Wgmma;

}  // namespace attune::ptx
