// What a block of Hopper's rung works on, in which order, and what its warps tell each other by.
#pragma once

#include "../ptx/bar.h"
#include "../ptx/mbarrier.h"
#include "../ptx/memory.h"
#include "../ptx/opaque.h"
#include "../ptx/tma.h"
#include "../ptx/wgmma.h"
#include "../tile/work.h"
#include "config.h"

namespace attune {

// Shared-memory addresses of the barriers, those of buffers and stages 8 bytes apart; and of the
// notes: for the block's nth tile and each warpgroup a word, 1 + the tile if it must be done again.
struct Barriers {
  uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty, tile_full, tile_empty, tile, any_note,
      passed, notes;

  __device__ explicit Barriers(uint32_t at)
      : q_full(at),
        q_empty(at + 16),
        k_full(at + 32),
        k_empty(at + 96),
        v_full(at + 160),
        v_empty(at + 224),
        tile_full(at + 288),
        tile_empty(at + 296),
        tile(at + 304),
        any_note(at + 308),
        passed(at + 312),
        notes(at + 320) {}

  __device__ uint32_t note(uint32_t nth, int warpgroup) const {
    return notes + 16 * nth + uint32_t(4 * warpgroup);
  }
  // What any warpgroup noted.
  template <int Warpgroups>
  __device__ uint32_t noted(uint32_t nth) const {
    uint32_t any = 0;
#pragma unroll
    for (int w = 0; w < Warpgroups; ++w) any |= ptx::ld_shared_b32(note(nth, w));
    return any;
  }

  // fp32: what goes with a stage's tile of K, and with that of V.
  __device__ uint32_t k_note(int stage) const {
    return notes + 16 * kMostTiles + uint32_t(2 * kSplitNote * stage);
  }
  __device__ uint32_t v_note(int stage) const { return k_note(stage) + kSplitNote; }

  // By all threads; q_arrivals: who gives a Q buffer back.
  template <WgmmaConfig C>
  __device__ void begin(int q_arrivals) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < C.q_buffers; ++i) {
        ptx::mbarrier_init(q_full + 8 * i, C.producer_warps());
        ptx::mbarrier_init(q_empty + 8 * i, q_arrivals);
      }
      for (int i = 0; i < C.stages; ++i) {
        ptx::mbarrier_init(k_full + 8 * i, C.producer_warps());
        ptx::mbarrier_init(k_empty + 8 * i, 4 * C.warpgroups);
        ptx::mbarrier_init(v_full + 8 * i, C.producer_warps());
        ptx::mbarrier_init(v_empty + 8 * i, 4 * C.warpgroups);
      }
      ptx::st_shared_b32(any_note, 0);
      ptx::mbarrier_init(passed, 4 * C.warpgroups);
      ptx::mbarrier_init(tile_full, 1);
      ptx::mbarrier_init(tile_empty, 4 * C.warpgroups + (C.tma() ? 0 : 4));
      ptx::fence_mbarrier_init();
    }
    for (int i = int(threadIdx.x); i < 4 * kMostTiles; i += C.threads())
      ptx::st_shared_b32(notes + 4 * i, 0);
  }
};

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

// Which buffer of a ring comes next, and whether it is the odd round.
template <int Size>
struct Ring {
  int at = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++at == Size) at = 0, phase ^= 1;
  }
};

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
