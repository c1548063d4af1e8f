// What the kernels of the backward pass on CUDA cores share. A block owns a tile of rows, and meets
// rows of the other kind in steps: a block that owns queries has Q and dO and meets keys, one that
// owns keys has K and V and meets queries. Either way it makes two products of all that it owns
// with all that it meets, and adds weighted rows of what it meets to sums of its own.
//
// Thread (ty, tx) of [8][16] owns 2, 4 or 8 rows, next to each other (8: four in each half of the
// tile), and has the met rows tx + 16*n, and columns 4*tx..4*tx+3 of every 64 of the sums.
#pragma once

#include "../tile/backward.h"
#include "backward_config.h"
#include "load.h"

namespace attune {

template <Problem P, BackwardConfig C>
struct BackwardTile {
  static constexpr DType kType = P.dtype;
  static constexpr BackwardLayout kMem = backward_layout(C, P.dim, P.dim_v);
  static constexpr int kOwn = own_rows(C), kMet = met_rows(C);
  using Products = float[kOwn][kMet];
  template <int dim>
  using Sums = float[kOwn][column_groups(dim)][4];

  const GradientArgs& args;
  const KernelArgs& x;
  const Problem p;
  float* const smem;
  const int tx, ty;

  __device__ BackwardTile(const GradientArgs& all, float* memory)
      : args(all),
        x(all.forward),
        p(specialised<P>(all.forward.problem)),
        smem(memory),
        tx(threadIdx.x % 16),
        ty(threadIdx.x / 16) {}

  // The thread's rows in the tile.
  __device__ int first_own() const { return (kOwn == 2 ? 2 : 4) * ty; }
  static __device__ constexpr int own_offset(int r) { return r / 4 * (C.block / 2) + r % 4; }
  __device__ int own(int r) const { return first_own() + own_offset(r); }
  __device__ int met(int n) const { return tx + 16 * n; }

  // Rows [row, end) of a head, as many as there is room for; the others become 0. Returns whether
  // all that this thread saw is finite.
  template <int rows, int dim, int pitch>
  __device__ bool load(float* to, const View& from, int b, int head, int64_t row,
                       int64_t end) const {
    const int valid = int(end - row < rows ? end - row : rows);
    return load_rows<kType, rows, dim, pitch, kBackwardThreads, C.vector>(
        to, row_of<kType>(from, b, head, row), from.stride_s, valid);
  }

  __device__ RowState* states() const { return reinterpret_cast<RowState*>(smem + kMem.states_at); }

  // Of rows [i0, i0 + rows); those past the sequence look at nothing.
  __device__ void load_states(const Sequence& seq, int b, int h, int64_t i0, int rows) const {
    if (int(threadIdx.x) >= rows) return;
    RowState state{0, 0, 0, 0};
    if (i0 + threadIdx.x < seq.sq) state = row_state(x, b, h, i0 + threadIdx.x);
    states()[threadIdx.x] = state;
  }

  // Query row i, which may lie past the last one: its masks must not be read then.
  __device__ Row<P> row(const Sequence& seq, int b, int h, int64_t i) const {
    Row<P> r(p, seq, b, h, int(i));
    if (i >= seq.sq) r.end = 0;
    return r;
  }

  // Whether the block mask leaves anything of these rows and keys. Has a barrier inside.
  __device__ bool alive(const Sequence& seq, int b, int h, int64_t i0, int rows, int64_t j0,
                        int keys) const {
    if constexpr (P.block_mask_q == 0) return true;
    const View4& m = x.params.block_mask;
    const auto* cells = static_cast<const uint8_t*>(m.data) + b * m.stride[0] + h * m.stride[1];
    const int64_t i1 = (i0 + rows < seq.sq ? i0 + rows : seq.sq) - 1;
    const int64_t j1 = (j0 + keys < seq.sk ? j0 + keys : seq.sk) - 1;
    const int first = cell_of(int(i0), p.block_mask_q), column = cell_of(int(j0), p.block_mask_k);
    const int cell_rows = cell_of(int(i1), p.block_mask_q) - first + 1;
    const int columns = cell_of(int(j1), p.block_mask_k) - column + 1;
    bool any = false;
    for (int n = threadIdx.x; n < cell_rows * columns; n += kBackwardThreads)
      any |= cells[(first + n / columns) * m.stride[2] + (column + n % columns) * m.stride[3]] != 0;
    return __syncthreads_or(any);
  }

  // to = own rows . met rows, four columns at a time.
  template <int dim, int pitch>
  __device__ void multiply(const float* own_at, Products& to) const {
    const float* left = own_at + first_own() * pitch;
    const float* right = smem + kMem.met_at + tx * pitch;
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
#pragma unroll
      for (int n = 0; n < kMet; ++n) to[r][n] = 0;
#pragma unroll 1  // more at once would need registers
    for (int d = 0; d < dim; d += 4) {
      float4 y[kMet];
#pragma unroll
      for (int n = 0; n < kMet; ++n) y[n] = float4_at(right + 16 * n * pitch + d);
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const float4 z = float4_at(left + own_offset(r) * pitch + d);
#pragma unroll
        for (int n = 0; n < kMet; ++n) to[r][n] = dot(z, y[n], to[r][n]);
      }
    }
  }

  // What each own row weighs for each met row: [met][own] in shared memory.
  __device__ void store_weights(const Products& from) const {
    float* to = smem + kMem.weights_at + first_own();
#pragma unroll
    for (int n = 0; n < kMet; ++n) {
      float* at = to + met(n) * kMem.pitch_w;
      if constexpr (kOwn == 2) {
        *reinterpret_cast<float2*>(at) = float2{from[0][n], from[1][n]};
      } else {
#pragma unroll
        for (int r = 0; r < kOwn; r += 4)
          *reinterpret_cast<float4*>(at + own_offset(r)) =
              float4{from[r][n], from[r + 1][n], from[r + 2][n], from[r + 3][n]};
      }
    }
  }

  // sums += weights^T met. Careful: a met row has NaN or Inf somewhere, and 0 * NaN must not come
  // of a key that is forbidden.
  template <int dim, int pitch, bool careful>
  __device__ void add(Sums<dim>& sums) const {
    const float* weights = smem + kMem.weights_at + first_own();
    const float* right = smem + kMem.met_at + 4 * tx;
#pragma unroll 2
    for (int m = 0; m < C.step; ++m) {
      float w[kOwn];
      if constexpr (kOwn == 2) {
        w[0] = weights[m * kMem.pitch_w], w[1] = weights[m * kMem.pitch_w + 1];
      } else {
#pragma unroll
        for (int r = 0; r < kOwn; r += 4) copy4(weights + m * kMem.pitch_w + own_offset(r), w + r);
      }
#pragma unroll
      for (int g = 0; g < column_groups(dim); ++g) {
        if (64 * g + 64 > dim && 64 * g + 4 * tx >= dim) continue;  // past the last column
        const float4 y = float4_at(right + m * pitch + 64 * g);
#pragma unroll
        for (int r = 0; r < kOwn; ++r)
          if (!careful || !adds_nothing(w[r])) add_scaled(w[r], y, sums[r][g]);
      }
    }
  }
  template <int dim, int pitch>
  __device__ void add(Sums<dim>& sums, bool careful) const {
    if (careful)
      add<dim, pitch, true>(sums);
    else
      add<dim, pitch, false>(sums);
  }

  template <int dim>
  __device__ void clear(Sums<dim>& sums) const {
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
#pragma unroll
      for (int g = 0; g < column_groups(dim); ++g)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[r][g][c] = 0;
  }

  // To rows [row, end) of a head.
  template <int dim>
  __device__ void store(const Sums<dim>& sums, const View& to, int b, int head, int64_t row,
                        int64_t end) const {
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      if (row + own(r) >= end) continue;
      auto* at = out_row<kType>(to, b, head, row + own(r));
#pragma unroll
      for (int g = 0; g < column_groups(dim); ++g)
        store4<kType, C.vector>(at, 4 * tx + 64 * g, dim, sums[r][g]);
    }
  }
};

}  // namespace attune
