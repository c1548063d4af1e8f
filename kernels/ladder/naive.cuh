// The first rung: attention as it is defined, one warp a query row (tile/naive_row.h). No shared
// memory, no scratch. Every row reads all of K and V anew: 2 loads a multiply-add, which is why the
// other rungs exist.
#pragma once

#include "../tile/naive_row.h"
#include "config.h"

namespace attune {

template <Problem P, LadderConfig C>
__device__ inline void naive(const KernelArgs& args) {
  const Problem p = specialised<P>(args.problem);
  // Which row: [b][h][i], one warp each.
  const int64_t index = int64_t(blockIdx.x) * kNaiveRows + threadIdx.x / 32;
  if (index >= p.batch * p.heads_q * p.seq_q) return;
  const int b = int(index / (p.heads_q * p.seq_q));
  const int h = int(index / p.seq_q % p.heads_q);
  const int i = int(index % p.seq_q);
  const Sequence seq = Sequence::of(p, args.params, b);
  if (i >= seq.sq) return;  // ragged: this sequence is shorter than the longest
  naive_row<P>(args, p, seq, b, h, i);
}

}  // namespace attune
