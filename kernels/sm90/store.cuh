// A warpgroup's 64 rows of O, from shared memory to where they belong.
#pragma once

#include "../ptx/tma.h"
#include "../tile/finish.h"
#include "ring.cuh"
#include "schedule.cuh"

namespace attune {

// 16, 8, 4 or 2 bytes of shared memory.
template <int Bytes>
__device__ inline auto shared_bytes(uint32_t from) {
  if constexpr (Bytes == 16)
    return ptx::ld_shared_v4(from);
  else if constexpr (Bytes == 8)
    return make_uint2(ptx::ld_shared_b32(from), ptx::ld_shared_b32(from + 4));
  else if constexpr (Bytes == 4)
    return ptx::ld_shared_b32(from);
  else
    return uint16_t(ptx::ld_shared_u16(from));
}

// Rows from `first` on, which lie at `at`. Barrier: a named one of the warpgroup's.
template <Problem P, WgmmaConfig C>
__device__ inline void store_rows(const KernelArgs& x, const TensorMaps& maps,
                                  const Work<P, C>& work, uint32_t at, int first, int barrier,
                                  bool one_thread) {
  if (first >= work.rows) return;
  // By hand what TMA cannot reach, and where the next sequence's rows are not ours to write.
  if (!C.tma() || (P.ragged && first + 64 > work.rows)) {
    constexpr int kStep = C.tma() ? 16 : C.copy, kSteps = (P.dim_v * 2 + kStep - 1) / kStep;
    for (int n = int(threadIdx.x % 128); n < 64 * kSteps; n += 128) {
      const int row = n / kSteps, step = n % kSteps, chunk = step / (16 / kStep);
      if (first + row >= work.rows) break;
      uint16_t* to = const_cast<uint16_t*>(row_of<P.dtype>(
          x.params.out, work.b, work.head(first + row), work.s.q0 + work.query(first + row)));
      using Bytes = decltype(shared_bytes<kStep>(0));
      *reinterpret_cast<Bytes*>(to + step * (kStep / 2)) =
          shared_bytes<kStep>(at + chunk / 8 * panel_bytes(64) + row * 128 +
                              ((chunk % 8 ^ row % 8) << 4) + step % (16 / kStep) * kStep);
    }
    ptx::bar_sync(barrier, 128);  // read, before the buffer is given back
    return;
  }
  if (one_thread) {
#pragma unroll
    for (int d = 0; d < panels_of(P.dim_v); ++d)
      if constexpr (C.pack_gqa)
        ptx::cp_async_bulk_tensor_5d_global_shared(&maps.out, at + d * panel_bytes(64), d * kPanel,
                                                   0, int(work.s.q0) + work.query(first), work.hk,
                                                   P.ragged ? 0 : work.b);
      else
        ptx::cp_async_bulk_tensor_4d_global_shared(&maps.out, at + d * panel_bytes(64), d * kPanel,
                                                   int(work.s.q0) + first, work.h,
                                                   P.ragged ? 0 : work.b);
    ptx::cp_async_bulk_commit_group();
  }
}

}  // namespace attune
