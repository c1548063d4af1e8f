// fp32 numbers as pairs of fp16, hi and lo, and the pre-pass that splits K and V so, once for all
// rows.
//
// hi = fp16(x) and lo = fp16(x - hi): 22 bits together. fp16 has few exponents, so a tile of keys
// is first scaled by a power of two. What fp16 cannot hold at all (Inf, NaN, beyond 2^71 in K) is
// marked.
#pragma once

#include "../tile/split.h"
#include "block.cuh"

namespace attune {

constexpr int kMaxExponent = 56;    // of K and of Q; both together must stay a normal number
constexpr int kMaxExponentV = 120;  // holds every finite number

struct TileNote {
  int exponent_k, exponent_v;  // the tile holds x * 2^exponent
  int bad_k, bad_v;            // not 0: some x is not held (0 stands there)
};
static_assert(sizeof(TileNote) == kTileNote);

// ---- The pre-pass: one block a tile of keys ----

// Splits Rows x Dim numbers into hi and lo tiles, which lie in memory as they will in shared
// memory.
template <int Rows, int Dim, int Padded, bool Vector>
__device__ inline void split_tile(const float* rows, int64_t stride, int valid, char* to, int most,
                                  int step, int* exponent, int* bad) {
  constexpr int kChunks = Padded / 8, kAll = Rows * kChunks;
  constexpr int kMine = (kAll + kSplitThreads - 1) / kSplitThreads;  // chunks of a thread
  __shared__ float warp_largest[kSplitThreads / 32];
  __shared__ int warp_bad[kSplitThreads / 32];
  float v[kMine][8], largest = 0;
#pragma unroll
  for (int n = 0; n < kMine; ++n) {
    const int at = n * kSplitThreads + threadIdx.x, row = at / kChunks, d = at % kChunks * 8;
#pragma unroll
    for (int e = 0; e < 8; ++e) v[n][e] = 0;
    if (at < kAll && row < valid) {
      const float* from = rows + row * stride + d;
      if constexpr (Vector) {
#pragma unroll
        for (int e = 0; e < 8; e += 4)
          if (d + e < Dim) {
            const float4 four = *reinterpret_cast<const float4*>(from + e);
            v[n][e] = four.x;
            v[n][e + 1] = four.y;
            v[n][e + 2] = four.z;
            v[n][e + 3] = four.w;
          }
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (d + e < Dim) v[n][e] = from[e];
      }
    }
  }
  const float limit = 0x1p15f * power_of_two(most);  // what the smallest exponent still holds
  bool not_held = false;
#pragma unroll
  for (int n = 0; n < kMine; ++n)
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (!(fabsf(v[n][e]) < limit)) {
        not_held = true;
        v[n][e] = 0;
      }
      largest = fmaxf(largest, fabsf(v[n][e]));
    }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  not_held = __any_sync(~0u, not_held);
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    warp_largest[threadIdx.x / 32] = largest;
    warp_bad[threadIdx.x / 32] = not_held;
  }
  __syncthreads();
  *bad = 0;
#pragma unroll
  for (int n = 0; n < kSplitThreads / 32; ++n) {
    largest = fmaxf(largest, warp_largest[n]);
    *bad |= warp_bad[n];
  }
  *exponent = exponent_for(largest, most, step);
  const float scale = power_of_two(*exponent);
#pragma unroll
  for (int n = 0; n < kMine; ++n) {
    const int at = n * kSplitThreads + threadIdx.x;
    if (at >= kAll) break;
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      split_pair(v[n][2 * e] * scale, v[n][2 * e + 1] * scale, hi[e], lo[e]);
    const uint32_t place = Swizzle<kChunks>::offset(at / kChunks, at % kChunks);
    *reinterpret_cast<uint4*>(to + place) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    *reinterpret_cast<uint4*>(to + Rows * Padded * 2 + place) =
        make_uint4(lo[0], lo[1], lo[2], lo[3]);
  }
}

// The workspace: all tiles [b][key head][tile], then their notes.
template <Problem P, MmaConfig C>
struct SplitTiles {
  using Plan = MmaPlan<P, C>;
  int64_t tiles;  // of one head
  char* data;
  TileNote* notes;

  __device__ SplitTiles(const Problem& p, const Params& a)
      : tiles((p.seq_k + C.block_k - 1) / C.block_k), data(static_cast<char*>(a.workspace)) {
    notes = reinterpret_cast<TileNote*>(data + p.batch * p.heads_kv * tiles * kBytes);
  }
  static constexpr int kBytes = Plan::kK + Plan::kV;
};

template <Problem P, MmaConfig C>
__device__ inline void split_operands(const KernelArgs& x) {
  using Plan = MmaPlan<P, C>;
  const Problem p = specialised<P>(x.problem);
  const SplitTiles<P, C> split(p, x.params);
  const int64_t at = blockIdx.x;
  const int tile = int(at % split.tiles), head = int(at / split.tiles);
  const int b = head / int(p.heads_kv), hk = head % int(p.heads_kv);
  const Sequence s = Sequence::of(p, x.params, b);
  const int64_t j0 = int64_t(tile) * C.block_k;
  ptx::griddepcontrol_launch_dependents();
  if (j0 >= s.sk) return;
  const int valid = int(min(s.sk - j0, int64_t(C.block_k)));
  char* to = split.data + at * split.kBytes;
  TileNote note;
  split_tile<C.block_k, P.dim, Plan::kDim, C.vector>(row_of<P.dtype>(x.params.k, b, hk, s.k0 + j0),
                                                     x.params.k.stride_s, valid, to, kMaxExponent,
                                                     1, &note.exponent_k, &note.bad_k);
  split_tile<C.block_k, P.dim_v, Plan::kDimV, C.vector>(
      row_of<P.dtype>(x.params.v, b, hk, s.k0 + j0), x.params.v.stride_s, valid, to + Plan::kK,
      kMaxExponentV, 8, &note.exponent_v, &note.bad_v);
  if (threadIdx.x == 0) split.notes[at] = note;
}

}  // namespace attune
