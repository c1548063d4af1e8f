// Shared memory by its own 32-bit addresses, and asynchronous copies into it (8.0 and up).
#pragma once

#include "../problem.h"

namespace attune::ptx {

__device__ inline uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// The same number, of which the compiler no longer knows where it came from: what is computed from
// it is computed where it is used, instead of being kept in registers through a loop.
__device__ inline uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Copies `bytes` (0 to 16) from global memory and fills the rest of the 16 with zeros.
__device__ inline void cp_async_16(uint32_t smem, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(global),
               "r"(bytes)
               : "memory");
}

// The same in smaller pieces, for rows that are less aligned: Size is 4, 8 or 16.
template <int Size>
__device__ inline void cp_async(uint32_t smem, const void* global, int bytes) {
  if constexpr (Size == 16)
    cp_async_16(smem, global, bytes);
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(smem), "l"(global),
                 "n"(Size), "r"(bytes)
                 : "memory");
}

__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most N of this thread's groups are under way.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ inline uint4 ld_shared_v4(uint32_t smem) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(smem)
               : "memory");
  return v;
}

__device__ inline void st_shared_v4(uint32_t smem, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(smem), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ inline void st_shared_v2(uint32_t smem, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(smem), "r"(x), "r"(y) : "memory");
}

__device__ inline uint32_t ld_shared_b32(uint32_t smem) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(smem) : "memory");
  return v;
}

__device__ inline void st_shared_b32(uint32_t smem, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(v) : "memory");
}

__device__ inline uint32_t ld_shared_u16(uint32_t smem) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(smem) : "memory");
  return v;
}

__device__ inline float ld_shared_f32(uint32_t smem) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(smem) : "memory");
  return v;
}

__device__ inline void st_shared_f32(uint32_t smem, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(smem), "f"(v) : "memory");
}

}  // namespace attune::ptx
