// Where the backward pass by mma.sync keeps its operands, and its first products: a warp's own
// rows, which lie in shared memory for the whole kernel, with a part of a tile that the block walks
// over.
#pragma once

#include "../tile/backward.h"
#include "backward_config.h"
#include "tile.cuh"

namespace attune {

// Where things lie in shared memory, in bytes: as backward_smem_bytes() counts them. Own rows are
// of K and V, or of Q and dO; tiles are of the other two.
template <Problem P, MmaBackwardConfig C, bool kKeys>
struct BackwardPlan {
  static constexpr int kDim = round_up(P.dim, 16), kDimV = round_up(P.dim_v, 16);
  static constexpr int kRows = C.own(kKeys), kWalked = C.walked(kKeys);
  static constexpr int kOwnV = kRows * kDim * 2;                // where V or dO begins
  static constexpr int kStages = kOwnV + kRows * kDimV * 2;     // where the stages do
  static constexpr int kTileV = kWalked * kDim * 2;             // in a stage: V or dO
  static constexpr int kStates = kTileV + kWalked * kDimV * 2;  // in a stage: of the query rows
  static constexpr int kStage = backward_stage_bytes(C, P, kKeys);
};

constexpr int kBackwardAhead = 2;  // fragments are fetched so many uses before they are needed

// S = X Y^T of MT m16 tiles of own rows from `own` on and N n8 tiles of rows from `tile` on.
template <DType T, int Dim, int MT, int N>
__device__ inline void multiply_rows(float (&s)[MT][N][4], uint32_t own, uint32_t tile, int lane) {
  using Lie = Swizzle<Dim / 8>;
  constexpr int kAhead = kBackwardAhead, kSteps = Dim / 16, kPairs = N / 2;
  constexpr int kUses = kSteps * kPairs;
  const int row = lane % 16, other = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
  const uint32_t first_a = ptx::opaque(own + Lie::offset(row, lane / 16));
  const uint32_t first_b = ptx::opaque(tile + Lie::offset(other, half));
  uint32_t a[2][MT][4], b[kAhead + 1][4];
  const auto fetch_a = [&](int step) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
      ptx::ldmatrix_x4(a[step % 2][mt],
                       Lie::step(first_a, row, lane / 16, step) + mt * 16 * Dim * 2);
  };
  const auto fetch_b = [&](int use) {
    ptx::ldmatrix_x4(b[use % (kAhead + 1)],
                     Lie::step(first_b, other, half, use / kPairs) + use % kPairs * 16 * Dim * 2);
  };
  fetch_a(0);
#pragma unroll
  for (int use = 0; use < kAhead && use < kUses; ++use) fetch_b(use);
#pragma unroll
  for (int use = 0; use < kUses; ++use) {
    const int step = use / kPairs, n = use % kPairs * 2;
    if (use + kAhead < kUses) fetch_b(use + kAhead);
    if (n == 0 && step + 1 < kSteps) fetch_a(step + 1);
    const uint32_t(&y)[4] = b[use % (kAhead + 1)];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      mma<T>(s[mt][n], a[step % 2][mt], y[0], y[1]);
      mma<T>(s[mt][n + 1], a[step % 2][mt], y[2], y[3]);
    }
  }
}

}  // namespace attune
