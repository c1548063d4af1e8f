// The backward pass on CUDA cores. S and P are computed anew from LSE, tile by tile, so that memory
// stays linear in the sequence; every gradient has one owner, so that bits repeat:
//
//   fused_dq    a block owns query rows of one head, and walks the keys
//                 S = Q K^T, dP = dO V^T, dS: in registers
//                 dQ += dS K
//   fused_dkv   a block owns keys of one K/V head, and walks the rows of all query heads of the
//               group that can look at them
//                 dP = dO V^T, S = Q K^T, P and dS: in registers
//                 dK += dS^T Q, dV += P^T dO
//
// Of what is walked over, one operand at a time lies in shared memory: dO is read twice in a step
// of fused_dkv, which is cheap beside its four products.
#pragma once

#include "backward_tile.h"

namespace attune {

template <Problem P, BackwardConfig C>
struct FusedDq : BackwardTile<P, C> {
  using Tile = BackwardTile<P, C>;
  using Tile::args, Tile::p, Tile::smem, Tile::x, Tile::kMem, Tile::kOwn, Tile::kMet;

  int b, h, head_kv;
  int64_t i0;  // the block's first row
  Sequence seq;
  typename Tile::template Sums<P.dim> dq;

  __device__ FusedDq(const GradientArgs& all, float* memory) : Tile(all, memory) {
    // Last rows first: under a causal limit they have the most keys, and should not start last.
    const int64_t tiles = ceil_div(p.seq_q, C.block), head = blockIdx.x / tiles;
    i0 = (tiles - 1 - blockIdx.x % tiles) * C.block;
    b = int(head / p.heads_q);
    h = int(head % p.heads_q);
    head_kv = int(h / p.group());
    seq = Sequence::of(p, x.params, b);
  }

  // dP becomes dS.
  __device__ void differentiate(int64_t j0, const typename Tile::Products& s,
                                typename Tile::Products& dp) const {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const Row<P> row = this->row(seq, b, h, i0 + this->own(r));
      const RowState state = this->states()[this->own(r)];
#pragma unroll
      for (int n = 0; n < kMet; ++n)
        dp[r][n] = derivative<P>(x, row, state, s[r][n], dp[r][n], int(j0 + this->met(n))).dscore;
    }
  }

  __device__ void tile(int64_t j0) {
    float* met = smem + kMem.met_at;
    const int64_t row = seq.k0 + j0, end = seq.k0 + seq.sk;
    typename Tile::Products s, dp;
    __syncthreads();  // the last step's K and dS are read
    this->template load<C.step, P.dim_v, kMem.pitch_v>(met, x.params.v, b, head_kv, row, end);
    __syncthreads();
    this->template multiply<P.dim_v, kMem.pitch_v>(smem + kMem.own_v_at, dp);
    __syncthreads();  // V is read: K takes its place
    const bool finite =
        this->template load<C.step, P.dim, kMem.pitch>(met, x.params.k, b, head_kv, row, end);
    const bool careful = __syncthreads_or(!finite);
    this->template multiply<P.dim, kMem.pitch>(smem, s);
    differentiate(j0, s, dp);
    this->store_weights(dp);
    __syncthreads();
    this->template add<P.dim, kMem.pitch>(dq, careful);
  }

  __device__ void run() {
    if (i0 >= seq.sq) return;  // ragged: this sequence is shorter than the longest
    const int64_t row = seq.q0 + i0, end = seq.q0 + seq.sq;
    this->template load<C.block, P.dim, kMem.pitch>(smem, x.params.q, b, h, row, end);
    this->template load<C.block, P.dim_v, kMem.pitch_v>(smem + kMem.own_v_at, args.grads.dout, b, h,
                                                        row, end);
    this->load_states(seq, b, h, i0, C.block);
    this->template clear<P.dim>(dq);
    // Later rows have later keys, so the first and the last row bound what the tile looks at.
    const int64_t last = i0 + C.block < seq.sq ? i0 + C.block - 1 : seq.sq - 1;
    const int64_t first_key = key_range(p, seq, i0).begin, end_key = key_range(p, seq, last).end;
    for (int64_t j0 = first_key / C.step * C.step; j0 < end_key; j0 += C.step)
      if (this->alive(seq, b, h, i0, C.block, j0, C.step)) tile(j0);
    this->template store<P.dim>(dq, args.grads.dq, b, h, row, end);
  }
};

template <Problem P, BackwardConfig C>
struct FusedDkv : BackwardTile<P, C> {
  using Tile = BackwardTile<P, C>;
  using Tile::args, Tile::p, Tile::smem, Tile::x, Tile::kMem, Tile::kOwn, Tile::kMet;

  int b, head_kv;
  int64_t j0;  // the block's first key
  Sequence seq;
  typename Tile::template Sums<P.dim> dk;
  typename Tile::template Sums<P.dim_v> dv;

  __device__ FusedDkv(const GradientArgs& all, float* memory) : Tile(all, memory) {
    const int64_t tiles = ceil_div(p.seq_k, C.block), head = blockIdx.x / tiles;
    j0 = blockIdx.x % tiles * C.block;  // first keys first: under a causal limit most rows see them
    b = int(head / p.heads_kv);
    head_kv = int(head % p.heads_kv);
    seq = Sequence::of(p, x.params, b);
  }

  // Keys of the sequence in memory, whether they are used or not: unused ones have gradients of 0.
  __device__ int64_t keys_in_memory() const {
    Problem whole = p;
    whole.key_lengths = false;
    return Sequence::of(whole, x.params, b).sk;
  }

  // S becomes P, dP becomes dS.
  __device__ void differentiate(int h, int64_t i0, typename Tile::Products& s,
                                typename Tile::Products& dp) const {
#pragma unroll
    for (int n = 0; n < kMet; ++n) {
      const Row<P> row = this->row(seq, b, h, i0 + this->met(n));
      const RowState state = this->states()[this->met(n)];
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const Derivative d =
            derivative<P>(x, row, state, s[r][n], dp[r][n], int(j0 + this->own(r)));
        s[r][n] = d.weight;
        dp[r][n] = d.dscore;
      }
    }
  }

  __device__ void tile(int h, int64_t i0) {
    float* met = smem + kMem.met_at;
    const int64_t row = seq.q0 + i0, end = seq.q0 + seq.sq;
    typename Tile::Products s, dp;
    __syncthreads();  // the last step's dO, P and states are read
    this->load_states(seq, b, h, i0, C.step);
    this->template load<C.step, P.dim_v, kMem.pitch_v>(met, args.grads.dout, b, h, row, end);
    __syncthreads();
    this->template multiply<P.dim_v, kMem.pitch_v>(smem + kMem.own_v_at, dp);
    __syncthreads();  // dO is read: Q takes its place
    bool finite = this->template load<C.step, P.dim, kMem.pitch>(met, x.params.q, b, h, row, end);
    bool careful = __syncthreads_or(!finite);
    this->template multiply<P.dim, kMem.pitch>(smem, s);
    differentiate(h, i0, s, dp);
    this->store_weights(dp);
    __syncthreads();
    this->template add<P.dim, kMem.pitch>(dk, careful);
    if (args.grads.dv.data == nullptr) return;
    __syncthreads();  // Q and dS are read: dO and P take their places
    this->store_weights(s);
    finite =
        this->template load<C.step, P.dim_v, kMem.pitch_v>(met, args.grads.dout, b, h, row, end);
    careful = __syncthreads_or(!finite);
    this->template add<P.dim_v, kMem.pitch_v>(dv, careful);
  }

  __device__ void walk() {
    const int64_t row = seq.k0 + j0, end = seq.k0 + seq.sk;
    this->template load<C.block, P.dim, kMem.pitch>(smem, x.params.k, b, head_kv, row, end);
    this->template load<C.block, P.dim_v, kMem.pitch_v>(smem + kMem.own_v_at, x.params.v, b,
                                                        head_kv, row, end);
    const RowRange rows = row_range(p, seq, j0, j0 + C.block - 1);
    const int group = int(p.group());
    for (int h = head_kv * group; h < (head_kv + 1) * group; ++h)
      for (int64_t i0 = rows.begin / C.step * C.step; i0 < rows.end; i0 += C.step)
        if (this->alive(seq, b, h, i0, C.step, j0, C.block)) tile(h, i0);
  }

  __device__ void run() {
    const int64_t keys = keys_in_memory();
    if (j0 >= keys) return;  // ragged: this sequence is shorter than the longest
    this->template clear<P.dim>(dk);
    this->template clear<P.dim_v>(dv);
    if (j0 < seq.sk) walk();
    const int64_t row = seq.k0 + j0, end = seq.k0 + keys;
    if (args.grads.dk.data != nullptr)
      this->template store<P.dim>(dk, args.grads.dk, b, head_kv, row, end);
    if (args.grads.dv.data != nullptr)
      this->template store<P.dim_v>(dv, args.grads.dv, b, head_kv, row, end);
  }
};

// Blocks: [B][H][Sq/block].
template <Problem P, BackwardConfig C>
__device__ inline void fused_dq(const GradientArgs& args) {
  extern __shared__ float4 memory[];
  FusedDq<P, C>(args, reinterpret_cast<float*>(memory)).run();
}

// Blocks: [B][Hkv][Sk/block].
template <Problem P, BackwardConfig C>
__device__ inline void fused_dkv(const GradientArgs& args) {
  extern __shared__ float4 memory[];
  FusedDkv<P, C>(args, reinterpret_cast<float*>(memory)).run();
}

}  // namespace attune
