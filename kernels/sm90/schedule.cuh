// What a block of Hopper's rung works on, in which order, and what its warps tell each other by.
#pragma once

#include "../ptx/hopper.h"
#include "../sm80/work.cuh"

namespace attune {

// Shared-memory addresses of the barriers, those of buffers and stages 8 bytes apart; and of the
// notes: for the block's nth tile and each warpgroup a word, 1 + the tile if it must be done again.
struct Barriers {
  uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty, tile_full, tile_empty, tile, notes;

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
        notes(at + 320) {}

  __device__ uint32_t note(uint32_t nth, int warpgroup) const {
    return notes + 16 * nth + uint32_t(4 * warpgroup);
  }
};

// The block's nth tile, as Work counts them, or one of these.
constexpr uint32_t kNoTile = ~0u, kNoMoreTiles = ~0u - 1;

template <Problem P, WgmmaConfig C>
__device__ inline uint32_t nth_tile(const Problem& p, const Params& a, uint32_t n) {
  if constexpr (C.cluster == 2) {
    // Neighbours of one head. Where one is left over, both blocks do it, and write the same.
    const uint32_t of_head = (uint32_t(p.seq_q) + C.block_q() - 1) / C.block_q();
    const uint32_t pairs = (of_head + 1) / 2;
    const uint32_t pair = n * (gridDim.x / 2) + blockIdx.x / 2, head = pair / pairs;
    if (head >= a.tiles / of_head) return kNoMoreTiles;
    const uint32_t tile = (pair - head * pairs) * 2 + ptx::cluster_rank();
    return head * of_head + min(tile, of_head - 1);
  }
  if constexpr (C.schedule != kPersistent || !P.causal) {
    const uint32_t tile = n * gridDim.x + blockIdx.x;
    return tile < a.tiles ? tile : kNoMoreTiles;
  }
  // Under a causal limit the first tile of a head goes with its last, the second with the last but
  // one: each pair is the same work.
  const uint32_t of_head = (uint32_t(p.seq_q) + C.block_q() - 1) / C.block_q();
  const uint32_t pairs = (of_head + 1) / 2;
  const uint32_t pair = n / 2 * gridDim.x + blockIdx.x;
  const uint32_t head = pair / pairs, long_one = pair % pairs, short_one = of_head - 1 - long_one;
  if (head >= a.tiles / of_head) return kNoMoreTiles;
  if (n % 2 == 1 && long_one == short_one) return kNoTile;
  const uint32_t heads = a.divisors.heads_of_group.divisor;
  const uint32_t head_group = head / heads;
  return head_group * a.divisors.tiles_of_group.divisor +
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
};

}  // namespace attune
