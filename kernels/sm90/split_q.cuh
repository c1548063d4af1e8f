// Q of an fp32 consumer, split in place in shared memory.
#pragma once

#include "consumer_f32.cuh"

namespace attune {

// Panels of 32 fp32 become panels of 64 hi and then of 64 lo. A row's bytes stay its own, so that
// a warp does this for its 16 rows alone: 8 lanes a row, 4 rows at once.
template <Problem P, WgmmaConfig C>
__device__ inline void ConsumerF32<P, C>::split_q() {
  constexpr int kRaw = (P.dim + 31) / 32;
  const uint32_t mine = rows.q + rows.warp * 16 * 128;
  // What the unit lacks by its own rounding, and by what is cut off.
  float lacking = rows.unit * kCutOff;
  if constexpr (!kScores)
    lacking += fmaf(rows.x.params.scale, kLog2e, -rows.unit) + rows.x.params.scale * kLog2eRest;
  float units[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + rows.lane / 8;
    float v[kRaw][4], largest = 0;
#pragma unroll
    for (int d = 0; d < kRaw; ++d) {
      const uint4 four = ptx::ld_shared_v4(chunk_at(mine, row, d, rows.lane % 8));
      const uint32_t raw[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        v[d][e] = fmaf(__uint_as_float(raw[e]), rows.unit, __uint_as_float(raw[e]) * lacking);
        if (fabsf(v[d][e]) < kInf) largest = fmaxf(largest, fabsf(v[d][e]));
      }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const int exponent = exponent_for(largest, kMostExponent, 1);
    float scale = power_of_two(exponent);
    units[i] = power_of_two(-exponent);
    // So small that bits are lost: NaN, and the rows are recorded.
    if (largest != 0 && largest * scale < kLossless) scale = kNan;
    __syncwarp();  // every lane has read its part of these rows
#pragma unroll
    for (int d = 0; d < kRaw; ++d) {
      uint32_t hi[2], lo[2];
      split_pair(v[d][0] * scale, v[d][1] * scale, hi[0], lo[0]);
      split_pair(v[d][2] * scale, v[d][3] * scale, hi[1], lo[1]);
      const uint32_t at =
          chunk_at(mine, row, d / 2, d % 2 * 4 + rows.lane % 8 / 2) + uint32_t(rows.lane % 2 * 8);
      ptx::st_shared_v2(at, hi[0], hi[1]);
      ptx::st_shared_v2(at + kPanels * panel_bytes(64), lo[0], lo[1]);
    }
  }
  // To the lanes that have the rows' products.
  const int from = rows.lane / 4 % 4 * 8;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float low = __shfl_sync(~0u, units[2 * r], from);
    const float high = __shfl_sync(~0u, units[2 * r + 1], from);
    q_unit[r] = rows.lane < 16 ? low : high;
  }
  ptx::fence_proxy_async_shared();
  ptx::bar_sync(kStoreBarrier + rows.wg, 128);
}

template <Problem P, WgmmaConfig C>
__device__ inline uint32_t ConsumerF32<P, C>::chunk_at(uint32_t first, int row, int panel,
                                                       int chunk) {
  return first + uint32_t(panel * panel_bytes(64) + row * 128 + ((chunk ^ row % 8) << 4));
}

}  // namespace attune
