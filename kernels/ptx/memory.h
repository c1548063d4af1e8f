// Shared memory by its own 32-bit addresses, and asynchronous copies into it.
#pragma once

#include "../problem.h"

namespace attune::ptx {

__device__ inline uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// sm_80. Copies `bytes` (0 to 16) from global memory and fills the rest of the 16 with zeros.
__device__ inline void cp_async_cg(uint32_t smem, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(global),
               "r"(bytes)
               : "memory");
}

// sm_80. The same in pieces of 4 or 8 bytes, for rows that are less aligned.
template <int Size>
__device__ inline void cp_async_ca(uint32_t smem, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(smem), "l"(global),
               "n"(Size), "r"(bytes)
               : "memory");
}

// Either, by its size: 4, 8 or 16.
template <int Size>
__device__ inline void cp_async(uint32_t smem, const void* global, int bytes) {
  if constexpr (Size == 16)
    cp_async_cg(smem, global, bytes);
  else
    cp_async_ca<Size>(smem, global, bytes);
}

// sm_80. Closes the group of this thread's copies.
__device__ inline void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// sm_80. Until at most N of this thread's groups are under way.
template <int N>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// sm_75
__device__ inline uint4 ld_shared_v4(uint32_t smem) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(smem)
               : "memory");
  return v;
}

// sm_75
__device__ inline void st_shared_v4(uint32_t smem, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(smem), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// sm_75
__device__ inline void st_shared_v2(uint32_t smem, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(smem), "r"(x), "r"(y) : "memory");
}

// sm_75
__device__ inline uint32_t ld_shared_b32(uint32_t smem) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(smem) : "memory");
  return v;
}

// sm_75
__device__ inline void st_shared_b32(uint32_t smem, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(v) : "memory");
}

// sm_75
__device__ inline uint32_t ld_shared_u16(uint32_t smem) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(smem) : "memory");
  return v;
}

// sm_75
__device__ inline float ld_shared_f32(uint32_t smem) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(smem) : "memory");
  return v;
}

// sm_75
__device__ inline void st_shared_f32(uint32_t smem, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(smem), "f"(v) : "memory");
}

}  // namespace attune::ptx
