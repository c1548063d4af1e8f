// The second rung: three kernels, each a tiled matrix product or a pass over a matrix. The scores
// go through global memory: S [B][H][Sq][Sk] floats in the workspace.
//
//   tiled_scores    S = features(Q K^T), -inf where a key is forbidden
//   tiled_softmax   P = softmax of each row of S, in place; LSE
//   tiled_output    O = P V
//
// What it buys over naive: a tile of 64 x 64 results is made from two strips in shared memory, so
// that a value read from global memory serves 64 multiply-adds, and one from shared memory 4. What
// it costs: memory that grows with Sq * Sk, written twice and read three times.
#pragma once

#include "../tile/plain.h"
#include "load.h"

namespace attune {

// A tile of 64 x 64 results of A B^T or A B: thread (ty, tx) of [16][16] owns rows 4*ty.. and
// columns 4*tx... Both operands lie in shared memory with the summed index outermost.
constexpr int kTile = 64;
constexpr int kDepth = 16;  // of the summed index, a step
constexpr int kStripPitch =
    kTile + 4;  // keeps 128-bit reads aligned, and spreads a column over the banks
constexpr int kPerThread =
    kDepth * kTile / kTiledThreads;  // elements of a strip that a thread loads
using Strip = float[kDepth][kStripPitch];

template <bool careful>
__device__ inline void multiply_strips(const Strip& left, const Strip& right, float (&acc)[4][4]) {
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    const float4 x = float4_at(&left[k][4 * ty]), y = float4_at(&right[k][4 * tx]);
    const float rows[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (!careful || !adds_nothing(rows[r])) add_scaled(rows[r], y, acc[r]);
  }
}

// Which part of the work a block has: units of a head, one head after another.
struct TiledPlace {
  int b, h, head_kv;
  int64_t unit;

  __device__ TiledPlace(const Problem& p, int64_t index, int64_t units) {
    const int64_t head = index / units;
    unit = index % units;
    b = int(head / p.heads_q);
    h = int(head % p.heads_q);
    head_kv = int(h / p.group());
  }
};

// Row i of S, in the workspace.
__device__ inline float* score_row(const KernelArgs& x, const TiledPlace& at, int64_t i) {
  const Problem& p = x.problem;
  return static_cast<float*>(x.params.workspace) +
         ((at.b * p.heads_q + at.h) * p.seq_q + i) * p.seq_k;
}

// strip[d][row] = source[row][d0 + d]: 16 neighbouring threads read 16 neighbouring columns.
template <DType T>
__device__ inline void load_strip(Strip& strip, const Storage<T>* source, int64_t stride, int rows,
                                  int columns) {
  const int d = threadIdx.x % kDepth;
#pragma unroll
  for (int n = 0; n < kPerThread; ++n) {
    const int row = threadIdx.x / kDepth + n * (kTiledThreads / kDepth);
    strip[d][row] = row < rows && d < columns ? to_float<T>(source[row * stride + d]) : 0.f;
  }
}

__device__ inline int at_most(int64_t n, int limit) { return int(n < limit ? n : limit); }

// One block a tile of S. Blocks: [B][H][Sq/64][Sk/64].
template <Problem P, LadderConfig C>
__device__ inline void tiled_scores(const KernelArgs& args) {
  alignas(16) __shared__ Strip q_strip, k_strip;
  const Problem p = specialised<P>(args.problem);
  const Params& a = args.params;
  const int64_t tiles_k = (p.seq_k + kTile - 1) / kTile, tiles_q = (p.seq_q + kTile - 1) / kTile;
  const TiledPlace at(p, blockIdx.x, tiles_q * tiles_k);
  const int64_t i0 = at.unit / tiles_k * kTile, j0 = at.unit % tiles_k * kTile;
  const Sequence seq = Sequence::of(p, a, at.b);
  if (i0 >= seq.sq || j0 >= seq.sk) return;
  const int rows = at_most(seq.sq - i0, kTile), keys = at_most(seq.sk - j0, kTile);

  // Later rows have later keys: first and last row tell whether any of the tile is within reach.
  float acc[4][4] = {};
  if (key_range(p, seq, i0).begin < j0 + keys && key_range(p, seq, i0 + rows - 1).end > j0) {
    const auto* q = row_of<P.dtype>(a.q, at.b, at.h, seq.q0 + i0);
    const auto* k = row_of<P.dtype>(a.k, at.b, at.head_kv, seq.k0 + j0);
    for (int d0 = 0; d0 < P.dim; d0 += kDepth) {
      load_strip<P.dtype>(q_strip, q + d0, a.q.stride_s, rows, P.dim - d0);
      load_strip<P.dtype>(k_strip, k + d0, a.k.stride_s, keys, P.dim - d0);
      __syncthreads();
      multiply_strips<false>(q_strip, k_strip, acc);
      __syncthreads();
    }
  }

  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (4 * ty + r >= rows) continue;
    const Row<P> row(p, seq, at.b, at.h, int(i0 + 4 * ty + r));
    float* scores = score_row(args, at, row.i);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t j = j0 + 4 * tx + c;
      if (j < seq.sk) scores[j] = row.in_range(int(j)) ? row.score(args, acc[r][c], int(j)) : -kInf;
    }
  }
}

// One warp a row. Blocks: B * H * Sq / kSoftmaxRows.
template <Problem P, LadderConfig C>
__device__ inline void tiled_softmax(const KernelArgs& args) {
  const Problem p = specialised<P>(args.problem);
  const int lane = threadIdx.x % 32;
  const int64_t index = int64_t(blockIdx.x) * kSoftmaxRows + threadIdx.x / 32;
  if (index >= p.batch * p.heads_q * p.seq_q) return;
  const TiledPlace at(p, index, p.seq_q);
  const Sequence seq = Sequence::of(p, args.params, at.b);
  if (at.unit >= seq.sq) return;
  const Row<P> row(p, seq, at.b, at.h, int(at.unit));
  float* scores = score_row(args, at, row.i);

  // Each lane walks its own keys; the lanes' maxima and sums meet at the end.
  float max = P.sinks ? row.sink(args) : -kInf;
  float sum = P.sinks && lane == 0 ? 1 : 0;
  for (int64_t j = lane; j < seq.sk; j += 32) {
    const float score = scores[j], new_max = fmaxf(max, score);
    sum = sum * weight_of(max, new_max) + weight_of(score, new_max);
    max = new_max;
  }
  const float row_max = lanes_max<32>(max);
  sum = lanes_sum<32>(sum * weight_of(max, row_max));

  const float factor = last_factor<P>(args, sum);
  for (int64_t j = lane; j < seq.sk; j += 32) {
    const float score = scores[j];
    const bool nothing = score == -kInf || (P.dropout && !row.kept(args, int(j)));
    scores[j] = nothing ? kNothing : weight_of(score, row_max) * factor;
  }
  if (lane == 0) store_lse<P>(args, at.b, at.h, seq.q0 + row.i, row_max, sum);
}

// One block a tile of O. Blocks: [B][H][Sq/64][Dv/64].
template <Problem P, LadderConfig C>
__device__ inline void tiled_output(const KernelArgs& args) {
  alignas(16) __shared__ Strip p_strip, v_strip;  // P^T [key][row], V [key][column]
  constexpr int kColumnTiles = (P.dim_v + kTile - 1) / kTile;
  const Problem p = specialised<P>(args.problem);
  const Params& a = args.params;
  const int64_t tiles_q = (p.seq_q + kTile - 1) / kTile;
  const TiledPlace at(p, blockIdx.x, tiles_q * kColumnTiles);
  const int64_t i0 = at.unit / kColumnTiles * kTile;
  const int column0 = int(at.unit % kColumnTiles) * kTile;
  const Sequence seq = Sequence::of(p, a, at.b);
  if (i0 >= seq.sq) return;
  const int rows = at_most(seq.sq - i0, kTile);

  // What lies outside of all rows' reach has no weight: whole strips are skipped.
  const int64_t begin = key_range(p, seq, i0).begin, end = key_range(p, seq, i0 + rows - 1).end;
  float acc[4][4] = {};
  for (int64_t j0 = begin / kDepth * kDepth; j0 < end; j0 += kDepth) {
    const int keys = at_most(seq.sk - j0, kDepth);
    load_strip<DType::f32>(p_strip, score_row(args, at, i0) + j0, p.seq_k, rows, keys);
    const auto* v = row_of<P.dtype>(a.v, at.b, at.head_kv, seq.k0 + j0);
    float zero = 0;  // NaN once V has something that is not finite
#pragma unroll
    for (int n = 0; n < kPerThread; ++n) {
      const int key = threadIdx.x / kTile + n * (kTiledThreads / kTile),
                column = threadIdx.x % kTile;
      const bool inside = key < keys && column0 + column < P.dim_v;
      const float x = inside ? to_float<P.dtype>(v[key * a.v.stride_s + column0 + column]) : 0.f;
      v_strip[key][column] = x;
      zero = fmaf(x, 0.f, zero);
    }
    if (__syncthreads_or(zero !=
                         0))  // NaN too: then 0 * NaN must not come of a key that adds nothing
      multiply_strips<true>(p_strip, v_strip, acc);
    else
      multiply_strips<false>(p_strip, v_strip, acc);
    __syncthreads();
  }

  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < 4; ++r)
    if (4 * ty + r < rows)
      store4<P.dtype, false>(out_row<P.dtype>(a.out, at.b, at.h, seq.q0 + i0 + 4 * ty + r),
                             column0 + 4 * tx, P.dim_v, acc[r]);
}

}  // namespace attune
