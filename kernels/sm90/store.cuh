// The end of a 16-bit consumer's rows: O, normalised, through the Q buffer to where it belongs, and
// LSE.
#pragma once

#include "../ptx/matrix.h"
#include "consumer.cuh"

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

// O, normalised, through the Q buffer to where it belongs, and LSE.
template <Problem P, WgmmaConfig C>
__device__ inline void Consumer<P, C>::write(uint32_t done_tile, uint32_t done_count, uint32_t at) {
  const Work<P, C> done(rows.p, rows.x, ptx::opaque(done_tile));
  const int first = done.first + rows.wg * 64;
  float factor[2];
  bool finite = true;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] = kTensorSums ? o[kO + 2 * r] : row_sum(l[r]);
    const int i = first + rows.warp * 16 + rows.lane / 4 + 8 * r;
    const Row<P> row = done.row(rows.p, min(i, done.rows - 1));
    float top = m[r] * rows.unit;
    if (kFirstMax) top = alpha[r] == 1 ? -reference[r] : -Room::kStep - reference[r];
    const Finish f = finish_row<P>(rows.x, row, m[r] == -kInf ? -kInf : top, l[r]);
    factor[r] = f.factor;
    if (rows.lane % 4 == 0 && i < done.rows) write_lse<P>(rows.x, done.s, row, f);
    // Beyond 2^24 a score times the unit may be rounded by so much that weights overflow, or that
    // the largest, which should be 1 at least, vanishes.
    finite &= i >= done.rows || m[r] == -kInf || (l[r] > Room::kLeast && l[r] < kInf);
  }
  uint32_t zeros = 0;  // or a NaN
  const int row = rows.warp * 16 + rows.lane % 16;
#pragma unroll
  for (int n8 = 0; n8 < kDimV / 8; n8 += 2) {
    uint32_t v[4] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (4 * n8 + 2 * e < kO)
        v[e] =
            pack<P.dtype>(o[4 * n8 + 2 * e] * factor[e & 1], o[4 * n8 + 2 * e + 1] * factor[e & 1]);
#pragma unroll
    for (int e = 0; e < 4; ++e) zeros = fma2<P.dtype>(v[e], 0, zeros);
    const int chunk = n8 + rows.lane / 16;
    ptx::stmatrix_x4(at + chunk / 8 * panel_bytes(64) + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                     v);
  }
  if (!finite || (zeros & 0x7fff7fff) != 0) rows.record(done_tile, done_count);
  if (C.tma()) ptx::fence_proxy_async_shared();
  ptx::bar_sync(kStoreBarrier + rows.wg, 128);
  store_rows<P, C>(rows.x, maps, done, at, first, kStoreBarrier + rows.wg,
                   rows.warp == 0 && rows.lane == 0);
}

}  // namespace attune
