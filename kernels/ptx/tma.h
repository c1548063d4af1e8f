// Copies of whole tiles by one thread (TMA), and the fences between threads' own accesses and
// those of the asynchronous units. A copy to shared memory reports its bytes to an mbarrier; copies
// to global memory are waited for in groups.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_90. A box of a tensor [b][h][s][d], by a map that the host made, to shared memory.
__device__ inline void cp_async_bulk_tensor_4d_shared_global(uint32_t smem, const void* map,
                                                             uint32_t bar, int d, int s, int h,
                                                             int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(smem),
      "l"(map), "r"(bar), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}

// sm_90. The same for [b][hk][s][h][d], where the heads h of a group share a box.
__device__ inline void cp_async_bulk_tensor_5d_shared_global(uint32_t smem, const void* map,
                                                             uint32_t bar, int d, int h, int s,
                                                             int hk, int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6, %7}], [%2];" ::"r"(smem),
      "l"(map), "r"(bar), "r"(d), "r"(h), "r"(s), "r"(hk), "r"(b)
      : "memory");
}

// sm_90. A box from shared memory to a tensor [b][h][s][d].
__device__ inline void cp_async_bulk_tensor_4d_global_shared(const void* map, uint32_t smem, int d,
                                                             int s, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(smem), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}

// sm_90. The same to [b][hk][s][h][d].
__device__ inline void cp_async_bulk_tensor_5d_global_shared(const void* map, uint32_t smem, int d,
                                                             int h, int s, int hk, int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
          "l"(map),
      "r"(smem), "r"(d), "r"(h), "r"(s), "r"(hk), "r"(b)
      : "memory");
}

// sm_90. Bytes as they lie in global memory, in multiples of 16.
__device__ inline void cp_async_bulk_shared_global(uint32_t smem, const void* global, int bytes,
                                                   uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem),
      "l"(global), "r"(bytes), "r"(bar)
      : "memory");
}

// sm_90. Closes the group of this thread's copies to global memory.
__device__ inline void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// sm_90. Until all groups have been read from shared memory.
__device__ inline void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// sm_90. Until all groups have been written.
__device__ inline void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// sm_90. What threads wrote to shared memory becomes visible to TMA and wgmma.
__device__ inline void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// sm_90. What threads wrote to global memory, here or in a kernel before, becomes visible to TMA.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace attune::ptx
