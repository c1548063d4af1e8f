// What a warp of the backward pass sums: a gradient of its own rows.
#pragma once

#include "backward_tile.cuh"

namespace attune {

// acc += W Y, where W is P or dS in the registers of S. Clean: Inf and NaN of Y count as 0.
template <DType T, int Dim, bool kMayClean, int MT, int N>
__device__ inline void add_rows(float (&acc)[MT][Dim / 8][4], const float (&w)[MT][N][4],
                                uint32_t tile, int lane, bool clean) {
  using Lie = Swizzle<Dim / 8>;
  constexpr int kAhead = kBackwardAhead, kPairs = Dim / 16, kUses = N / 2 * kPairs;
  const int row = lane % 16;
  const uint32_t first = ptx::opaque(tile + Lie::offset(row, lane / 16));
  uint32_t a[MT][4], b[kAhead + 1][4];
  const auto fetch = [&](int use) {
    uint32_t(&y)[4] = b[use % (kAhead + 1)];
    ptx::ldmatrix_x4_trans(
        y, Lie::step(first, row, lane / 16, use % kPairs) + use / kPairs * 16 * Dim * 2);
    if (kMayClean && clean)
#pragma unroll
      for (int e = 0; e < 4; ++e) y[e] = without_nonfinite<T>(y[e]);
  };
#pragma unroll
  for (int use = 0; use < kAhead && use < kUses; ++use) fetch(use);
#pragma unroll
  for (int use = 0; use < kUses; ++use) {
    const int step = use / kPairs, pair = use % kPairs;
    if (pair == 0)
#pragma unroll
      for (int mt = 0; mt < MT; ++mt)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          a[mt][e] =
              pack<T>(w[mt][2 * step + e / 2][e % 2 * 2], w[mt][2 * step + e / 2][e % 2 * 2 + 1]);
    if (use + kAhead < kUses) fetch(use + kAhead);
    const uint32_t(&y)[4] = b[use % (kAhead + 1)];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      mma<T>(acc[mt][2 * pair], a[mt], y[0], y[1]);
      mma<T>(acc[mt][2 * pair + 1], a[mt], y[2], y[3]);
    }
  }
}

// Rows [0, 16 MT) of a warp's sums to shared memory, where its own rows were, and from there to
// global memory, whole rows at once: `valid` of them, from row `zeros` on as zeros.
template <DType T, int Dim, int Padded, bool Vector, int MT, class RowPointer>
__device__ inline void write_rows(const float (&acc)[MT][Padded / 8][4], uint32_t own, int lane,
                                  int zeros, int valid, const RowPointer& row_pointer) {
  using Lie = Swizzle<Padded / 8>;
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = mt * 16 + r * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < Padded / 8; ++n)
        ptx::st_shared_b32(own + Lie::offset(row, n) + lane % 4 * 4,
                           row < zeros ? pack<T>(acc[mt][n][2 * r], acc[mt][n][2 * r + 1]) : 0);
    }
  __syncwarp();
  constexpr int kChunks = Padded / 8;
  for (int at = lane; at < MT * 16 * kChunks; at += 32) {
    const int row = at / kChunks, chunk = at % kChunks;
    if (row >= valid || chunk * 8 >= Dim) continue;
    const uint4 v = ptx::ld_shared_v4(own + Lie::offset(row, chunk));
    uint16_t* to = row_pointer(row) + chunk * 8;
    if constexpr (Vector) {
      *reinterpret_cast<uint4*>(to) = v;
    } else {
      const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (chunk * 8 + e < Dim) to[e] = uint16_t(word[e / 2] >> e % 2 * 16);
    }
  }
}

// A gradient of MT m16 tiles of rows; kHas false: the warp has none, and nothing here does
// anything.
template <DType T, int MT, int Dim, bool kHas>
class BackwardSums {
  static constexpr int kPadded = round_up(Dim, 16), kTiles = kHas ? kPadded / 8 : 0;

 public:
  __device__ void reset() {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[mt][n][e] = 0;
  }

  // 0 where all sums are finite, else NaN.
  __device__ float times_zero() const {
    float all = 0;
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) all = fmaf(sum[mt][n][e], 0.f, all);
    return all;
  }

  template <bool kMayClean, int N>
  __device__ void add(const float (&w)[MT][N][4], uint32_t tile, int lane, bool clean) {
    if constexpr (kHas) add_rows<T, kPadded, kMayClean>(sum, w, tile, lane, clean);
  }

  // Inf and NaN of one row, to those own rows that have a part in it.
  __device__ void add_nonfinite(const uint16_t* row, int lane, const bool (&to)[MT][2]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int d = n * 8 + lane % 4 * 2 + e;
        const float value = d < Dim ? to_float<T>(row[d]) : 0.f;
        if (fabsf(value) < kInf) continue;
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int r = 0; r < 2; ++r)
            if (to[mt][r]) sum[mt][n][2 * r + e] += value;
      }
  }

  template <bool Vector, class RowPointer>
  __device__ void write(uint32_t own, int lane, int zeros, int valid,
                        const RowPointer& row_pointer) const {
    if constexpr (kHas)
      write_rows<T, Dim, kPadded, Vector>(sum, own, lane, zeros, valid, row_pointer);
  }

 private:
  float sum[MT][kHas ? kTiles : 1][4];
};

}  // namespace attune
