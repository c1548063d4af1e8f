// Attention on Hopper: fp16 and bf16, every feature (9.0).
//
//   producer (one warp)       Q, K and V tiles into shared memory by TMA, as buffers become free;
//   or copier (four warps)    the same by hand, where TMA cannot reach the tensors
//   consumer (a warpgroup)    64 query rows: S = Q K^T by wgmma, softmax in registers, O += P V by
//                             wgmma with P in registers; then O through the buffer that held Q
//
// mbarriers say that a buffer is full (bytes have arrived) or empty (every consumer's warp is done
// with it). Tiles of keys are walked from the last to the first, so that the diagonal comes first.
#pragma once

#include "../ptx/setmaxnreg.h"
#include "consumer.cuh"
#include "copier.cuh"
#include "producer.cuh"
#include "second_pass.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
__device__ inline void wgmma_forward(const KernelArgs& x, const TensorMaps& maps) {
  extern __shared__ __align__(1024) uint8_t raw[];
  constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  const Problem p = specialised<P>(x.problem);
  const uint32_t base = (ptx::shared_address(raw) + (kTileAlign - 1)) & ~uint32_t(kTileAlign - 1);
  const Control bars(base + kLayout.control_at);
  bars.begin<C>(C.warpgroups);
  if constexpr (C.sums == RowSums::tensor) {  // beside every stage of V, a panel of ones
    constexpr uint32_t kOnes = P.dtype == DType::bf16 ? 0x3f803f80u : 0x3c003c00u;
    constexpr int kChunks = panel_bytes(C.block_k) / 16;
    for (int i = int(threadIdx.x); i < C.stages * kChunks; i += C.threads())
      ptx::st_shared_v4(base + kLayout.v_at + i / kChunks * kLayout.v +
                            panel_bytes(C.block_k) * panels_of(P.dim_v) + i % kChunks * 16,
                        make_uint4(kOnes, kOnes, kOnes, kOnes));
    ptx::fence_proxy_async_shared();
  }
  __syncthreads();
  // Said by a shuffle, so that the compiler knows it to be the same in all of a warp.
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<C.producer_registers>();
    if constexpr (!C.tma())
      Copier<P, C>(x, p, bars, base).run();
    else if (threadIdx.x == 0)
      Producer<P, C>(x, maps, p, bars, base).run();
  } else {
    ptx::setmaxnreg_inc<C.consumer_registers()>();
    Consumer<P, C> consumer(x, maps, p, bars, base, warpgroup - 1);
    consumer.run();
    if constexpr (C.maxima == RowMaxima::first) {
      SecondPass<P, C> second_pass(x, maps, p, bars, base, warpgroup - 1);
      second_pass.run(consumer.place());
      second_pass.repair();
    } else {
      consumer.repair();
    }
  }
}

}  // namespace attune
