// The pre-pass of fp32 on Hopper's rung: K and V as pairs of fp16, hi and lo, once for all rows.
//
// A tile of keys shares one power of two, 22 bits of a number that is large in its tile are kept,
// and what lies below 2^-25 after scaling is lost. Where that could matter is found out, not hoped:
//
//   K   A tile is lossy if one of its rows, not 0, lies so far below the largest that it keeps
//       fewer bits than fp32's own sums do. What is lost is a score's absolute error, so a lossy
//       tile does harm only to rows of Q so large that this error shows: the consumer knows both
//       units and notes those rows (a huge key that is forbidden, or orthogonal, among small ones).
//   V   What is lost is an error of the result, so the consumer judges by the result: one that is
//       small beside what V's units hold is noted. It is told the exponent, and where a row has no
//       bits left at all: then whoever looks at the tile is noted.
//
// What is not finite is left out of the units, and turns into NaN in every product: noted as well.
#pragma once

#include "../ptx/griddepcontrol.h"
#include "../tile/features.h"
#include "../tile/split.h"
#include "config.h"

namespace attune {

constexpr int kMostExponent = 120;    // times 2^this, what is subnormal keeps few bits: it is lossy
constexpr int kNothingThere = 126;    // the exponent of a tile of V that is 0
constexpr int kVanished = 1024;       // added to that of one with a row of which nothing is left
constexpr float kLossless = 0x1p-3f;  // scaled rows that reach this keep 22 bits

// What goes with a tile of K (unit, lossy) and with one of V (exponent).
struct SplitNote {
  float unit;    // the tile holds x / unit
  float lossy;   // 1: some row has lost bits; else 0
  int exponent;  // the tile holds x * 2^exponent
  int unused;
};
static_assert(sizeof(SplitNote) == kSplitNote);

// The workspace: a counter, the tiles [b][key head][tile], of K and of V each as they will lie in
// shared memory, then their notes.
template <Problem P, WgmmaConfig C>
struct SplitMemory {
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  int64_t tiles;  // of one head
  char *data, *notes;

  __device__ SplitMemory(const Problem& p, const Params& a)
      : tiles((p.seq_k + C.block_k - 1) / C.block_k),
        data(static_cast<char*>(a.workspace) + kCounterBytes),
        notes(data + p.batch * p.heads_kv * tiles * (kLayout.k + kLayout.v)) {}

  __device__ int64_t index(const Problem& p, int b, int hk, int tile) const {
    return (b * p.heads_kv + hk) * tiles + tile;
  }
  __device__ char* k(int64_t tile) const { return data + tile * (kLayout.k + kLayout.v); }
  __device__ char* v(int64_t tile) const { return k(tile) + kLayout.k; }
  __device__ char* k_note(int64_t tile) const { return notes + tile * 2 * kSplitNote; }
  __device__ char* v_note(int64_t tile) const { return k_note(tile) + kSplitNote; }
};

// The largest of a block's numbers, and the smallest.
struct Extremes {
  float largest, smallest;

  __device__ void over_block() {
    __shared__ float2 warps[kSplitThreads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) take(other(step));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = make_float2(largest, smallest);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kSplitThreads / 32; ++n) take({warps[n].x, warps[n].y});
  }
  __device__ Extremes other(int step) const {
    return {__shfl_xor_sync(~0u, largest, step), __shfl_xor_sync(~0u, smallest, step)};
  }
  __device__ void take(const Extremes& e) {
    largest = fmaxf(largest, e.largest);
    smallest = fminf(smallest, e.smallest);
  }
};

// One tile of block_k rows, `valid` of them there, into panels of hi and then of lo. Lanes that
// share a row are a power of two, with 8 of its numbers each.
template <int Keys, int Dim, int Padded, bool IsV>
__device__ inline void split_tile_of(const float* rows, int64_t stride, int valid, char* to,
                                     SplitNote* note) {
  constexpr int kChunks = Padded / 8;
  constexpr int kLanes = kChunks <= 1    ? 1
                         : kChunks <= 2  ? 2
                         : kChunks <= 4  ? 4
                         : kChunks <= 8  ? 8
                         : kChunks <= 16 ? 16
                                         : 32;
  constexpr int kStep = kSplitThreads / kLanes, kMine = (Keys + kStep - 1) / kStep;  // rows
  const int first = int(threadIdx.x) / kLanes, chunk = int(threadIdx.x) % kLanes;
  float v[kMine][8];
#pragma unroll
  for (int n = 0; n < kMine; ++n)
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
      const int row = first + n * kStep, d = chunk * 8 + e;
      float4 four = make_float4(0, 0, 0, 0);
      if (row < valid && d < Dim) four = *reinterpret_cast<const float4*>(rows + row * stride + d);
      v[n][e] = four.x, v[n][e + 1] = four.y, v[n][e + 2] = four.z, v[n][e + 3] = four.w;
    }

  Extremes of_rows{0, kInf};
#pragma unroll
  for (int n = 0; n < kMine; ++n) {
    float largest = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (fabsf(v[n][e]) < kInf) largest = fmaxf(largest, fabsf(v[n][e]));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    of_rows.take({largest, largest == 0 ? kInf : largest});
  }
  of_rows.over_block();

  // Steps of 8 in V, so that tiles of similar numbers share one, and O need not be scaled anew.
  int exponent = exponent_for(of_rows.largest, kMostExponent, IsV ? 8 : 1);
  const float scale = power_of_two(exponent);
  if (IsV && of_rows.largest == 0) exponent = kNothingThere;
  const bool vanished = IsV && of_rows.smallest * scale < 0x1p-25f;
  if (threadIdx.x == 0)
    *note = {power_of_two(-exponent), of_rows.smallest * scale < kLossless ? 1.f : 0.f,
             vanished ? exponent + kVanished : exponent, 0};
#pragma unroll
  for (int n = 0; n < kMine; ++n) {
    const int row = first + n * kStep;
    if (row >= Keys || chunk >= kChunks) continue;
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      split_pair(v[n][2 * e] * scale, v[n][2 * e + 1] * scale, hi[e], lo[e]);
    char* at = to + chunk / 8 * panel_bytes(Keys) + row * 128 + ((chunk % 8 ^ row % 8) << 4);
    *reinterpret_cast<uint4*>(at) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    *reinterpret_cast<uint4*>(at + panels_of(Dim) * panel_bytes(Keys)) =
        make_uint4(lo[0], lo[1], lo[2], lo[3]);
  }
}

// A block for every tile of K, and one for every tile of V.
template <Problem P, WgmmaConfig C>
__device__ inline void split_for_wgmma(const KernelArgs& x) {
  ptx::griddepcontrol_launch_dependents();
  const Problem p = specialised<P>(x.problem);
  const SplitMemory<P, C> memory(p, x.params);
  if (C.schedule == kDynamic && blockIdx.x == 0 && threadIdx.x == 0)
    *static_cast<uint32_t*>(x.params.workspace) = 0;
  const int64_t at = blockIdx.x / 2;
  const int tile = int(at % memory.tiles), head = int(at / memory.tiles);
  const int b = head / int(p.heads_kv), hk = head % int(p.heads_kv);
  const Sequence s = Sequence::of(p, x.params, b);
  const int64_t j0 = int64_t(tile) * C.block_k;
  // Past the end of a shorter sequence; but one without keys has a first tile, of zeros.
  if (j0 >= s.sk && tile > 0) return;
  const int valid = int(min(s.sk - j0, int64_t(C.block_k)));
  if (blockIdx.x % 2 == 0)
    split_tile_of<C.block_k, P.dim, round_up(P.dim, 16), false>(
        row_of<P.dtype>(x.params.k, b, hk, s.k0 + j0), x.params.k.stride_s, valid, memory.k(at),
        reinterpret_cast<SplitNote*>(memory.k_note(at)));
  else
    split_tile_of<C.block_k, P.dim_v, round_up(P.dim_v, 8), true>(
        row_of<P.dtype>(x.params.v, b, hk, s.k0 + j0), x.params.v.stride_s, valid, memory.v(at),
        reinterpret_cast<SplitNote*>(memory.v_note(at)));
}

}  // namespace attune
