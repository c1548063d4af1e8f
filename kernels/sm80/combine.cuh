// What scores are multiplied with, and the merging of split-KV's parts.
#pragma once

#include "../ptx/griddepcontrol.h"
#include "../ptx/math.h"
#include "../tile/finish.h"
#include "config.h"

namespace attune {

// What a mask adds stands in the accumulators before the products join it, in their units.
constexpr bool mask_first(const Problem& p) {
  return p.mask != MaskKind::none && p.dtype != DType::f32 && !scored(p);
}

// Scores times this are powers of two. Where they are no more than a multiple of q.k the scale
// joins in, or, for fp32, is in Q already.
template <Problem P>
__device__ inline float score_unit(const Params& a) {
  if (scored(P) || (P.mask > MaskKind::boolean && !mask_first(P))) return kLog2e;
  return P.dtype == DType::f32 ? 1.f : a.scale * kLog2e;
}

// The parts of split-KV in the workspace: [split][b][h][i], O with Dv rounded up to 16.
template <Problem P>
struct PartOf {
  static constexpr int kDimV = (P.dim_v + 15) / 16 * 16;
  float* out;
  float2* stats;  // maximum of the scores, sum
  int64_t heads, seq, rows;

  __device__ PartOf(void* workspace, const Problem& p, int splits)
      : heads(p.heads_q), seq(p.seq_q), rows(p.batch * p.heads_q * p.seq_q) {
    out = static_cast<float*>(workspace);
    stats = reinterpret_cast<float2*>(out + splits * rows * kDimV);
  }
  __device__ int64_t row(int split, int64_t b, int64_t h, int64_t i) const {
    return split * rows + (b * heads + h) * seq + i;
  }
};

// Where the parts begin: after the split operands of fp32.
template <Problem P, MmaConfig C>
__device__ inline void* part_memory(const Problem& p, const Params& a) {
  char* at = static_cast<char*>(a.workspace);
  if constexpr (P.dtype == DType::f32) {
    const int64_t tiles = p.batch * p.heads_kv * ((p.seq_k + C.block_k - 1) / C.block_k);
    const int64_t bytes = tiles * split_tile_bytes(C, P);
    at += (bytes + 255) / 256 * 256;
  }
  return at;
}

// One block a row; its warps take every fourth part, then the first one adds up, always in one
// order.
template <Problem P, MmaConfig C>
__device__ inline void mma_combine(const KernelArgs& x) {
  constexpr int kDimV = PartOf<P>::kDimV, kWarps = kCombineThreads / 32;
  constexpr int kColumns = (kDimV + 31) / 32;  // of a lane
  __shared__ float shared[kWarps][kDimV];
  __shared__ float sums[kWarps];
  const Problem p = specialised<P>(x.problem);
  const int splits = x.blocks.splits, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t at = blockIdx.x;
  const int i = int(at % p.seq_q), h = int(at / p.seq_q % p.heads_q),
            b = int(at / p.seq_q / p.heads_q);
  const Sequence s = Sequence::of(p, x.params, b);
  if (i >= s.sq) return;
  const float c = score_unit<P>(x.params);
  const PartOf<P> part(part_memory<P, C>(p, x.params), p, splits);

  ptx::griddepcontrol_wait();
  float top = -kInf;
  for (int n = lane; n < splits; n += 32) top = fmaxf(top, part.stats[part.row(n, b, h, i)].x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));

  float sum = 0, o[kColumns] = {};
  for (int n = warp; n < splits; n += kWarps) {
    const int64_t row = part.row(n, b, h, i);
    const float2 stats = part.stats[row];
    if (stats.x == -kInf && stats.y == 0) continue;
    const float weight = stats.x == -kInf ? 1.f : ptx::ex2_approx((stats.x - top) * c);
    sum += stats.y * weight;
#pragma unroll
    for (int e = 0; e < kColumns; ++e)
      if (const int d = e * 32 + lane; d < kDimV) o[e] += part.out[row * kDimV + d] * weight;
  }
#pragma unroll
  for (int e = 0; e < kColumns; ++e)
    if (const int d = e * 32 + lane; d < kDimV) shared[warp][d] = o[e];
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int n = 0; n < kWarps; ++n) sum += sums[n];
  const Row<P> row(p, s, b, h, i);
  const Finish f = finish_row<P>(x, row, top == -kInf ? -kInf : top * c, sum);
  if (threadIdx.x == 0) write_lse<P>(x, s, row, f);
  Storage<P.dtype>* out =
      const_cast<Storage<P.dtype>*>(row_of<P.dtype>(x.params.out, b, h, s.q0 + i));
  for (int d = threadIdx.x; d < P.dim_v; d += kCombineThreads) {
    float value = 0;
#pragma unroll
    for (int n = 0; n < kWarps; ++n) value += shared[n][d];
    out[d] = from_float<P.dtype>(value * f.factor);
  }
}

}  // namespace attune
