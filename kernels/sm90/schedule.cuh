// What a block of Hopper's rung works on, and in which order: tiles of rows, and for each of them
// tiles of keys.
#pragma once

#include "../tile/work.h"
#include "config.h"

namespace attune {

// The block's nth tile, as Work counts them, or one of these.
constexpr uint32_t kNoTile = ~0u, kNoMoreTiles = ~0u - 1;

template <Problem P, WgmmaConfig C>
__device__ inline uint32_t nth_tile(const Problem& p, const KernelArgs& x, uint32_t n) {
  const Blocks& blocks = x.blocks;
  if constexpr (C.schedule != kPersistent || !P.causal) {
    const uint32_t tile = n * gridDim.x + blockIdx.x;
    return tile < blocks.tiles ? tile : kNoMoreTiles;
  }
  // Under a causal limit the first tile of a head goes with its last, the second with the last but
  // one: each pair is the same work.
  const uint32_t rows = uint32_t(p.seq_q) * (C.pack_gqa ? blocks.divisors.group.divisor : 1);
  const uint32_t of_head = (rows + C.block_q() - 1) / C.block_q();
  const uint32_t pairs = (of_head + 1) / 2;
  const uint32_t pair = n / 2 * gridDim.x + blockIdx.x;
  const uint32_t head = pair / pairs, long_one = pair % pairs, short_one = of_head - 1 - long_one;
  if (head >= blocks.tiles / of_head) return kNoMoreTiles;
  if (n % 2 == 1 && long_one == short_one) return kNoTile;
  const uint32_t heads = blocks.divisors.heads_of_group.divisor;
  const uint32_t head_group = head / heads;
  return head_group * blocks.divisors.tiles_of_group.divisor +
         (n % 2 == 0 ? long_one : short_one) * heads + head - head_group * heads;
}

// The cells of the block mask that rows and keys lie in.
struct Cells {
  const uint8_t* data;
  int64_t stride_h, stride_q, stride_k;
  int heads, rows, columns;

  // Whether one of every so many, from the nth on, keeps its keys; whether all of them do.
  __device__ bool any(int n, int every) const {
    bool found = false;
    for (; n < heads * rows * columns; n += every) found |= at(n);
    return found;
  }
  __device__ bool all(int n, int every) const {
    bool kept = true;
    for (; n < heads * rows * columns; n += every) kept &= at(n);
    return kept;
  }

 private:
  __device__ bool at(int n) const {
    const int row = n / columns;
    return data[row % heads * stride_h + row / heads * stride_q + n % columns * stride_k] != 0;
  }
};

template <Problem P, WgmmaConfig C>
__device__ inline Cells cells_of(const KernelArgs& x, const Problem& p, const Work<P, C>& work,
                                 int first, int last, int j0) {
  const View4& m = x.params.block_mask;
  const int q0 = cell_of(work.query(first), p.block_mask_q);
  const int k0 = cell_of(j0, p.block_mask_k);
  const int j1 = min(j0 + C.block_k, int(work.s.sk)) - 1;
  return {static_cast<const uint8_t*>(m.data) + work.b * m.stride[0] + work.h * m.stride[1] +
              q0 * m.stride[2] + k0 * m.stride[3],
          m.stride[1],
          m.stride[2],
          m.stride[3],
          C.pack_gqa ? work.group : 1,
          cell_of(work.query(last), p.block_mask_q) - q0 + 1,
          cell_of(j1, p.block_mask_k) - k0 + 1};
}

// The key tiles [begin, end) that some row of a block may look at. One tile at least: where there
// is nothing to look at, all of it is masked.
template <Problem P, WgmmaConfig C>
struct Tiles {
  int begin, end;

  Tiles() = default;
  __device__ Tiles(const Problem& p, const Work<P, C>& work) {
    const int last = min(work.first + C.block_q(), work.rows) - 1;
    const Span span = span_of<P, C>(p, work, work.first, last);
    begin = span.begin / C.block_k;
    end = (span.end + C.block_k - 1) / C.block_k;
    if (begin >= end) begin = 0, end = 1;
  }

  // Tiles are walked from the last to the first: of the first n, those that are left, so that the
  // last one has a key that the block mask keeps, or `begin`. `lanes` threads ask together.
  __device__ int live(const KernelArgs& x, const Problem& p, const Work<P, C>& work, int n,
                      int lane, int lanes) const {
    if constexpr (P.block_mask_q != 0) {
      const int last = min(work.first + C.block_q(), work.rows) - 1;
      for (; n > begin; --n) {
        const bool any =
            cells_of<P, C>(x, p, work, work.first, last, (n - 1) * C.block_k).any(lane, lanes);
        if (lanes == 1 ? any : __any_sync(~0u, any)) break;
      }
    }
    return n;
  }
  // The first tile is computed in any case: where all of it is masked, that is what comes out.
  __device__ int first_live(const KernelArgs& x, const Problem& p, const Work<P, C>& work, int lane,
                            int lanes) const {
    if constexpr (P.block_mask_q == 0) return end;
    return max(live(x, p, work, end, lane, lanes), begin + 1);
  }
};

}  // namespace attune
