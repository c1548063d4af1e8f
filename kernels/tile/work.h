// Which query rows a block of a tensor-core kernel works on, and which keys these may look at. C is
// the kernel's config: block_q(), pack_gqa, split_kv.
#pragma once

#include "features.h"

namespace attune {

// A tile of query rows of one head, or, packed, of all query heads that share a key head: row r is
// then query r / group of head h + r % group, so that a few queries still fill a tile.
template <Problem P, auto C>
struct Work {
  int b, h, hk;  // batch, query head (the first of the group), key head
  int first;     // the tile's first row
  int rows;      // of the sequence; packed, times the heads of the group
  int group;
  Sequence s;

  Work() = default;
  __device__ Work(const Problem& p, const KernelArgs& x, uint32_t block) {
    const BlockDivisors& divisors = x.blocks.divisors;
    group = int(divisors.group.divisor);
    const uint32_t longest = uint32_t(p.seq_q) * uint32_t(C.pack_gqa ? group : 1);
    const uint32_t tiles = (longest + C.block_q() - 1) / C.block_q();
    if constexpr (C.split_kv) block = divisors.splits.quotient(block);
    const uint32_t heads = divisors.heads_of_group.divisor;
    const uint32_t head_group = divisors.tiles_of_group.quotient(block);
    const uint32_t rest = block - head_group * divisors.tiles_of_group.divisor;
    // The last tiles of all heads come first, since under a causal limit they take longest.
    const uint32_t tile = divisors.heads_of_group.quotient(rest);
    first = int(tiles - 1 - tile) * C.block_q();
    const uint32_t head = head_group * heads + rest - tile * heads;
    b = int(divisors.heads_of_batch.quotient(head));
    hk = h = int(head - uint32_t(b) * divisors.heads_of_batch.divisor);
    if constexpr (C.pack_gqa)
      h = hk * group;
    else
      hk = int(divisors.group.quotient(uint32_t(h)));
    s = Sequence::of(p, x.params, b);
    rows = int(C.pack_gqa ? s.sq * group : s.sq);
  }

  __device__ int query(int r) const { return C.pack_gqa ? r / group : r; }
  __device__ int head(int r) const { return C.pack_gqa ? h + r % group : h; }
  __device__ Row<P> row(const Problem& p, int r) const {
    return Row<P>(p, s, b, head(r), query(r));
  }
};

// The keys of rows [first, last]: what any of them may look at, and what all of them may.
struct Span {
  int begin, end;          // some row looks at these
  int all_begin, all_end;  // every row does, as far as sequence, causal limit and window say
};

template <Problem P, auto C>
__device__ inline Span span_of(const Problem& p, const Work<P, C>& work, int first, int last) {
  const Row<P> low = work.row(p, first), high = work.row(p, last);
  return {low.begin, high.end, high.begin, low.end};
}

}  // namespace attune
