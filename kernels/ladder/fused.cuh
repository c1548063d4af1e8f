// The third rung: FlashAttention on CUDA cores. One kernel; scores never leave the multiprocessor.
//
//   a block owns block_q query rows of one head, and walks the keys in tiles of block_k:
//     Q [block_q][D] once, K [block_k][D] into shared memory
//     S = features(Q K^T)           8 x block_k/16 scores a thread, in registers (4 x at 32 rows)
//     P, max, sum, acc *= rescale   online softmax; a row lies across 16 neighbouring lanes
//     P^T and V [block_k][Dv] into shared memory, V where K was
//     acc += P V                    8 x Dv/16 outputs a thread, in registers
//
// What it buys: a value read from shared memory serves 4 to 8 multiply-adds, a value read from
// global memory serves block_q of them, and S [Sq][Sk] is never written.
//
// Thread (ty, tx) of [block_q/8][16] owns rows 4*ty..4*ty+3 of both halves of the tile, keys tx +
// 16*n, and columns 4*tx..4*tx+3 of every 64 of Dv. With 32 rows it is [8][16], and the tile has no
// halves: fewer accumulators a thread, for large Dv and for features that need registers
// themselves.
#pragma once

#include "../tile/plain.h"
#include "load.h"

namespace attune {

template <Problem P, LadderConfig C>
struct Fused {
  static constexpr DType kType = P.dtype;
  static constexpr FusedLayout kMem = fused_layout(C, P.dim, P.dim_v);
  static constexpr int kThreads = block_threads(C);
  static constexpr int kRows = thread_rows(C), kKeys = C.block_k / 16,
                       kGroups = (P.dim_v + 63) / 64;

  // Where the thread is.
  const KernelArgs& args;
  const Problem p;
  float* const smem;
  const int tx, ty;
  int b, h, head_kv;
  int64_t i0;  // the block's first row
  Sequence seq;

  // One row of the softmax is spread over 16 lanes: each has its own part of the sum.
  float score[kRows][kKeys];
  float acc[kRows][kGroups][4];
  float max[kRows], sum[kRows];

  __device__ Fused(const KernelArgs& x, float* memory)
      : args(x),
        p(specialised<P>(x.problem)),
        smem(memory),
        tx(threadIdx.x % 16),
        ty(threadIdx.x / 16) {
    // Last rows first: under a causal limit they have the most keys, and should not start last.
    const int64_t tiles = (p.seq_q + C.block_q - 1) / C.block_q;
    const int64_t head = blockIdx.x / tiles;
    i0 = (tiles - 1 - blockIdx.x % tiles) * C.block_q;
    b = int(head / p.heads_q);
    h = int(head % p.heads_q);
    head_kv = int(h / p.group());
    seq = Sequence::of(p, x.params, b);
  }

  // Of the thread's row r, from its first.
  static __device__ constexpr int row_offset(int r) { return r / 4 * (C.block_q / 2) + r % 4; }

  template <int rows, int dim, int pitch>
  __device__ bool load(float* to, const View& from, int head, int64_t row, int64_t end) const {
    const auto* source = row_of<kType>(from, b, head, row);
    const int valid = int(end - row < rows ? end - row : rows);
    return load_rows<kType, rows, dim, pitch, kThreads, C.vector>(to, source, from.stride_s, valid);
  }

  __device__ void start() {
    load<C.block_q, P.dim, kMem.pitch_k>(smem, args.params.q, h, seq.q0 + i0, seq.q0 + seq.sq);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // A sink is a key that the row has seen already; its value is 0.
      max[r] = P.sinks ? args.params.sinks[h * args.params.sinks_stride] : -kInf;
      sum[r] = P.sinks && tx == 0 ? 1 : 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[r][g][c] = 0;
    }
  }

  // Whether the block mask leaves anything of the tile. Has a barrier inside.
  __device__ bool alive(int64_t j0) const {
    if constexpr (P.block_mask_q == 0) return true;
    const View4& m = args.params.block_mask;
    const auto* cells = static_cast<const uint8_t*>(m.data) + b * m.stride[0] + h * m.stride[1];
    const int64_t i1 = (i0 + C.block_q < seq.sq ? i0 + C.block_q : seq.sq) - 1;
    const int64_t j1 = (j0 + C.block_k < seq.sk ? j0 + C.block_k : seq.sk) - 1;
    const int row = cell_of(int(i0), p.block_mask_q), column = cell_of(int(j0), p.block_mask_k);
    const int rows = cell_of(int(i1), p.block_mask_q) - row + 1;
    const int columns = cell_of(int(j1), p.block_mask_k) - column + 1;
    bool any = false;
    for (int n = threadIdx.x; n < rows * columns; n += kThreads)
      any |= cells[(row + n / columns) * m.stride[2] + (column + n % columns) * m.stride[3]] != 0;
    return __syncthreads_or(any);
  }

  // score = Q K^T, four columns of D at a time: 8 + 4 loads of 128 bits for 128 multiply-adds.
  __device__ void product_qk() {
    const float* q = smem + 4 * ty * kMem.pitch_k;
    const float* k = smem + kMem.kv_at + tx * kMem.pitch_k;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int n = 0; n < kKeys; ++n) score[r][n] = 0;
#pragma unroll 1  // more at once would need registers, and cost a block of the multiprocessor
    for (int d = 0; d < P.dim; d += 4) {
      float4 x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) x[r] = float4_at(q + row_offset(r) * kMem.pitch_k + d);
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        const float4 y = float4_at(k + 16 * n * kMem.pitch_k + d);
#pragma unroll
        for (int r = 0; r < kRows; ++r) score[r][n] = dot(x[r], y, score[r][n]);
      }
    }
  }

  // Scores become weights; what was summed so far is rescaled to the new maximum.
  __device__ void softmax(int64_t j0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Row<P> row(p, seq, b, h, int(i0 + 4 * ty + row_offset(r)));
      if (row.i >= seq.sq) row.end = 0;  // beyond the last row: the mask must not be read
      float new_max = -kInf;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        const int j = int(j0 + tx + 16 * n);
        score[r][n] = row.in_range(j) ? row.score(args, score[r][n], j) : -kInf;
        new_max = fmaxf(new_max, score[r][n]);
      }
      new_max = fmaxf(max[r], lanes_max<16>(new_max));
      const float rescale = weight_of(max[r], new_max);
      max[r] = new_max;
      sum[r] *= rescale;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        const bool forbidden = score[r][n] == -kInf;
        const float weight = weight_of(score[r][n], new_max);
        sum[r] += weight;
        score[r][n] =
            forbidden || (P.dropout && !row.kept(args, int(j0 + tx + 16 * n))) ? kNothing : weight;
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[r][g][c] *= rescale;
    }
  }

  __device__ void store_weights() const {
    float* to = smem + kMem.p_at + tx * kMem.pitch_p + 4 * ty;
#pragma unroll
    for (int n = 0; n < kKeys; ++n)
#pragma unroll
      for (int r = 0; r < kRows; r += 4)
        *reinterpret_cast<float4*>(to + 16 * n * kMem.pitch_p + row_offset(r)) =
            float4{score[r][n], score[r + 1][n], score[r + 2][n], score[r + 3][n]};
  }

  // acc += P V. Careful: V has a NaN or Inf somewhere in the tile, and 0 * NaN must not come of a
  // key that adds nothing.
  template <bool careful>
  __device__ void product_pv() {
    const float* weights = smem + kMem.p_at + 4 * ty;
    const float* v = smem + kMem.kv_at + 4 * tx;
#pragma unroll 2
    for (int k = 0; k < C.block_k; ++k) {
      float w[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r += 4) copy4(weights + k * kMem.pitch_p + row_offset(r), w + r);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 y = float4_at(v + k * kMem.pitch_v + 64 * g);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          if (!careful || !adds_nothing(w[r])) add_scaled(w[r], y, acc[r][g]);
      }
    }
  }

  __device__ void tile(int64_t j0) {
    float* kv = smem + kMem.kv_at;
    const int64_t row = seq.k0 + j0, end = seq.k0 + seq.sk;
    __syncthreads();  // the last tile's V and P are read
    load<C.block_k, P.dim, kMem.pitch_k>(kv, args.params.k, head_kv, row, end);
    __syncthreads();
    product_qk();
    softmax(j0);
    __syncthreads();  // K is read: V takes its place
    store_weights();
    const bool finite =
        load<C.block_k, P.dim_v, kMem.pitch_v>(kv, args.params.v, head_kv, row, end);
    if (__syncthreads_or(!finite))
      product_pv<true>();
    else
      product_pv<false>();
  }

  __device__ void finish() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = i0 + 4 * ty + row_offset(r);
      const float total = lanes_sum<16>(sum[r]);
      if (i >= seq.sq) continue;
      const float factor = last_factor<P>(args, total);
      auto* out = out_row<kType>(args.params.out, b, h, seq.q0 + i);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[r][g][c] = last_value(acc[r][g][c], factor);
        store4<kType, C.vector>(out, 4 * tx + 64 * g, P.dim_v, acc[r][g]);
      }
      if (tx == 0) store_lse<P>(args, b, h, seq.q0 + i, max[r], total);
    }
  }

  __device__ void run() {
    if (i0 >= seq.sq) return;  // ragged: this sequence is shorter than the longest
    start();
    // Later rows have later keys, so the first and the last row bound what the tile looks at.
    const int64_t last = i0 + C.block_q < seq.sq ? i0 + C.block_q - 1 : seq.sq - 1;
    const int64_t begin = key_range(p, seq, i0).begin, end = key_range(p, seq, last).end;
    for (int64_t j0 = begin / C.block_k * C.block_k; j0 < end; j0 += C.block_k)
      if (alive(j0)) tile(j0);
    finish();
  }
};

template <Problem P, LadderConfig C>
__device__ inline void fused(const KernelArgs& args) {
  extern __shared__ float4 memory[];
  Fused<P, C>(args, reinterpret_cast<float*>(memory)).run();
}

}  // namespace attune
