// dMask on CUDA cores: dS, summed over every dimension that the mask broadcasts. A block owns a
// tile of dMask, and walks all sequences, heads, rows and keys that its elements stand for: without
// broadcasting it computes one tile of dS, and with one row for all it computes a strip.
#pragma once

#include "backward_tile.h"

namespace attune {

template <Problem P, BackwardConfig C>
struct FusedDmask : BackwardTile<P, C> {
  using Tile = BackwardTile<P, C>;
  using Tile::args, Tile::p, Tile::smem, Tile::x, Tile::kMem, Tile::kOwn, Tile::kMet;

  const int64_t* const shape;
  int64_t place[4];        // of the tile's first element in dMask
  double sum[kOwn][kMet];  // in double, since an element may stand for all scores of the call

  __device__ FusedDmask(const GradientArgs& all, float* memory)
      : Tile(all, memory), shape(all.grads.dmask_shape) {
    static_assert(8 * C.block * C.step <= smem_bytes(C, P));
    const int64_t tiles_k = ceil_div(shape[3], C.step), tiles_q = ceil_div(shape[2], C.block);
    int64_t index = blockIdx.x;
    place[3] = index % tiles_k * C.step;
    index /= tiles_k;
    place[2] = index % tiles_q * C.block;
    index /= tiles_q;
    place[1] = index % shape[1];
    place[0] = index / shape[1];
  }

  // What the tile stands for in dimension d, of `all`; `own`: what it has of it by itself.
  __device__ KeyRange range(int d, int64_t own, int64_t all) const {
    if (shape[d] == 1) return {0, all};
    return {place[d], place[d] + own < all ? place[d] + own : all};
  }

  __device__ void tile(const Sequence& seq, int b, int h, int64_t i0, int64_t j0) {
    float* met = smem + kMem.met_at;
    const int head_kv = int(h / p.group());
    const int64_t row = seq.k0 + j0, end = seq.k0 + seq.sk;
    typename Tile::Products s, dp;
    __syncthreads();  // the last step's K is read
    this->template load<C.step, P.dim_v, kMem.pitch_v>(met, x.params.v, b, head_kv, row, end);
    __syncthreads();
    this->template multiply<P.dim_v, kMem.pitch_v>(smem + kMem.own_v_at, dp);
    __syncthreads();  // V is read: K takes its place
    this->template load<C.step, P.dim, kMem.pitch>(met, x.params.k, b, head_kv, row, end);
    __syncthreads();
    this->template multiply<P.dim, kMem.pitch>(smem, s);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const Row<P> at = this->row(seq, b, h, i0 + this->own(r));
      const RowState state = this->states()[this->own(r)];
#pragma unroll
      for (int n = 0; n < kMet; ++n)
        sum[r][n] += double(
            derivative<P, true>(x, at, state, s[r][n], dp[r][n], int(j0 + this->met(n))).dscore);
    }
  }

  __device__ void rows(const Sequence& seq, int b, int h, int64_t i0) {
    const int64_t row = seq.q0 + i0, end = seq.q0 + seq.sq;
    __syncthreads();  // the last rows are read
    this->template load<C.block, P.dim, kMem.pitch>(smem, x.params.q, b, h, row, end);
    this->template load<C.block, P.dim_v, kMem.pitch_v>(smem + kMem.own_v_at, args.grads.dout, b, h,
                                                        row, end);
    this->load_states(seq, b, h, i0, C.block);
    const int64_t last = i0 + C.block < seq.sq ? i0 + C.block - 1 : seq.sq - 1;
    const int64_t first_key = key_range(p, seq, i0).begin, end_key = key_range(p, seq, last).end;
    const KeyRange keys = range(3, C.step, seq.sk);
    for (int64_t j0 = keys.begin; j0 < keys.end; j0 += C.step)
      if (j0 < end_key && j0 + C.step > first_key &&
          this->alive(seq, b, h, i0, C.block, j0, C.step))
        tile(seq, b, h, i0, j0);
  }

  // The thread's sums by way of shared memory: an element of dMask may have many.
  __device__ void store() const {
    double* sums = reinterpret_cast<double*>(smem);
    __syncthreads();  // the last K is read
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
#pragma unroll
      for (int n = 0; n < kMet; ++n) sums[this->own(r) * C.step + this->met(n)] = sum[r][n];
    __syncthreads();
    const bool one_row = shape[2] == 1, one_key = shape[3] == 1;
    const int rows = one_row ? 1 : C.block, keys = one_key ? 1 : C.step;
    const View4& to = args.grads.dmask;
    for (int n = threadIdx.x; n < rows * keys; n += kBackwardThreads) {
      const int first_row = n / keys, first_key = n % keys;
      const int64_t i = place[2] + first_row, j = place[3] + first_key;
      if (i >= shape[2] || j >= shape[3]) continue;
      double total = 0;
      for (int r = first_row; r < (one_row ? C.block : first_row + 1); ++r)
        for (int k = first_key; k < (one_key ? C.step : first_key + 1); ++k)
          total += sums[r * C.step + k];
      static_cast<float*>(to.data)[place[0] * to.stride[0] + place[1] * to.stride[1] +
                                   i * to.stride[2] + j * to.stride[3]] = float(total);
    }
  }

  __device__ void run() {
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
#pragma unroll
      for (int n = 0; n < kMet; ++n) sum[r][n] = 0;
    const KeyRange batches = range(0, 1, p.batch), heads = range(1, 1, p.heads_q);
    for (int64_t b = batches.begin; b < batches.end; ++b) {
      const Sequence seq = Sequence::of(p, x.params, b);
      const KeyRange of_rows = range(2, C.block, seq.sq);
      for (int64_t h = heads.begin; h < heads.end; ++h)
        for (int64_t i0 = of_rows.begin; i0 < of_rows.end; i0 += C.block)
          rows(seq, int(b), int(h), i0);
    }
    store();
  }
};

// Blocks: tiles of dMask.
template <Problem P, BackwardConfig C>
__device__ inline void fused_dmask(const GradientArgs& args) {
  extern __shared__ float4 memory[];
  FusedDmask<P, C>(args, reinterpret_cast<float*>(memory)).run();
}

}  // namespace attune
