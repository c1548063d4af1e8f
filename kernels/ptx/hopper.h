// What Hopper brings (9.0a): barriers in shared memory that count bytes, copies of whole tiles by
// one thread (TMA), products of four warps together (wgmma), registers that warps hand to each
// other.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// ---- mbarriers: shared-memory addresses; a phase ends when as many arrived as were announced ----

__device__ inline void mbarrier_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and says that so many bytes will.
__device__ inline void mbarrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// The same without waiting: whether that phase has ended.
__device__ inline bool mbarrier_test(uint32_t bar, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// ---- TMA: a box of a tensor [b][h][s][d], by a map that the host made ----

__device__ inline void tma_load(uint32_t smem, const void* map, uint32_t bar, int d, int s, int h,
                                int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(smem),
      "l"(map), "r"(bar), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}
// The same for [b][hk][s][h][d], where the heads h of a group share a box.
__device__ inline void tma_load(uint32_t smem, const void* map, uint32_t bar, int d, int h, int s,
                                int hk, int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6, %7}], [%2];" ::"r"(smem),
      "l"(map), "r"(bar), "r"(d), "r"(h), "r"(s), "r"(hk), "r"(b)
      : "memory");
}
__device__ inline void tma_store(const void* map, uint32_t smem, int d, int h, int s, int hk,
                                 int b) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
          "l"(map),
      "r"(smem), "r"(d), "r"(h), "r"(s), "r"(hk), "r"(b)
      : "memory");
}
// Bytes as they lie in global memory, in multiples of 16.
__device__ inline void bulk_load(uint32_t smem, const void* global, int bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem),
      "l"(global), "r"(bytes), "r"(bar)
      : "memory");
}
__device__ inline void tma_store(const void* map, uint32_t smem, int d, int s, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(smem), "r"(d), "r"(s), "r"(h), "r"(b)
      : "memory");
}
__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until what this thread stores has been read from shared memory; until it has been written.
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// What threads wrote to shared memory becomes visible to TMA and wgmma.
__device__ inline void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// What threads wrote to global memory, here or in a kernel before, becomes visible to TMA.
__device__ inline void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- named barriers, of a part of the block's threads ----

__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// ---- wgmma: m64nNk16, sums in float32 ----

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most N groups are under way.
template <int N>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Ties values to this point of the program: no read of them moves above a wait for the products
// that write them.
template <int N>
__device__ inline void pin(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

// A matrix in shared memory, rows of 128 bytes swizzled by their number; `leading` bytes lie
// between panels of 64 columns where the instruction walks over them.
__device__ inline uint64_t wgmma_matrix(uint32_t smem, int leading) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t(leading >> 4) << 16 |
         (smem & 0x3ffff) >> 4;
}

// One struct for every N that a kernel uses comes with the kernel's source (src/jit/source.cpp):
//   ss(d, a, b, add): d = a b + (add ? d : 0), both operands in shared memory
//   rs(d, a, b, add): a in registers, as mma_m16n8k16 has it, one m16 tile a warp
// Turned: b's rows are the columns of the product's depth, as V has them.
template <int N, DType T, bool Turned>
struct Wgmma;

template <int N>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Two numbers at once: a b + c.
template <DType T>
__device__ inline uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  if constexpr (T == DType::bf16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ inline void stmatrix_x4(uint32_t smem, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace attune::ptx
