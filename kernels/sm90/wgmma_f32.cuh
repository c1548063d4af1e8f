// Attention on Hopper: fp32 at fp32 accuracy, every feature (9.0).
//
//   pre-pass (a kernel)       K and V as pairs of fp16, tile by tile, into the workspace
//   producer (one warp)       Q by TMA, tiles of K and V as they lie, as buffers become free
//   consumer (a warpgroup)    64 query rows, three products for each one of fp16
//
// The rest is as in wgmma.cuh.
#pragma once

#include "../ptx/setmaxnreg.h"
#include "consumer_f32.cuh"
#include "producer.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
__device__ inline void wgmma_f32_forward(const KernelArgs& x, const TensorMaps& maps) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const Problem p = specialised<P>(x.problem);
  const uint32_t base = (ptx::shared_address(raw) + (kTileAlign - 1)) & ~uint32_t(kTileAlign - 1);
  const Control bars(base + wgmma_layout(C, P).control_at);
  bars.begin<C>(4 * C.warpgroups);
  __syncthreads();
  // Said by a shuffle, so that the compiler knows it to be the same in all of a warp.
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<C.producer_registers>();
    if (threadIdx.x == 0) Producer<P, C>(x, maps, p, bars, base).run();
  } else {
    ptx::setmaxnreg_inc<C.consumer_registers()>();
    // Found out anew where it is used, or kept: registers are short, and this is what spared some.
    const int consumer = C.flat ? warpgroup - 1 : int(threadIdx.x / 128) - 1;
    ConsumerF32<P, C>(x, p, bars, base, consumer).run();
  }
}

}  // namespace attune
