// What a 16-bit consumer makes of the products of Q and K: masks and what the caller asked for are
// added, and forbidden keys become -inf.
#pragma once

#include "consumer.cuh"

namespace attune {

// Products into scores, forbidden keys to -inf.
template <Problem P, WgmmaConfig C>
template <bool Limits>
__device__ inline void Consumer<P, C>::score(int j0) {
  if (kLateMask) load_mask();
  if constexpr (kByElement) {
    const Work<P, C> work(rows.p, rows.x, ptx::opaque(rows.tile));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row<P> row = work.row(rows.p, min(rows.row_at(r), work.rows - 1));
#pragma unroll
      for (int i = 2 * r; i < kS; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = j0 + i / 4 * 8 + rows.lane % 4 * 2 + e;
          float& t = s[i + e];
          if (!row.in_range(j)) {
            t = -kInf;
            continue;
          }
          const float added = C.stages_mask() ? mask.at(i + e) : row.mask(rows.x, j);
          if constexpr (kScores)
            t = row.template score<false>(rows.x, t, j, added);
          else
            t = row.passes(rows.x, j) ? t + added : -kInf;
        }
    }
  } else {
    if constexpr (kMasked)
#pragma unroll
      for (int i = 0; i < kS; ++i)
        s[i] = kScores ? fmaf(s[i], rows.x.params.scale, mask.at(i)) : s[i] + mask.at(i);
    if constexpr (kBlocks)
      rows.block(s, j0);
    else if constexpr (Limits)
      rows.limit(s, j0);
  }
}

template <Problem P, WgmmaConfig C>
__device__ inline void Consumer<P, C>::load_mask() {
  mask.load(rows.x, rows.base, rows.k_ring.at, rows.wg, rows.warp, rows.lane);
}

}  // namespace attune
