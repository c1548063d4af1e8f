// Scores and online softmax of an fp32 consumer: its weights are split, too.
#pragma once

#include "consumer_f32.cuh"

namespace attune {

// Forbidden keys to -inf; where more than that is asked for, products into scores.
template <Problem P, WgmmaConfig C>
__device__ inline void ConsumerF32<P, C>::score(int j0) {
  if constexpr (!kByElement) {
    if constexpr (!P.window()) {  // found out anew, not kept in registers through the walk
      const Work<P, C> work(rows.p, rows.x, ptx::opaque(rows.tile));
      rows.keys = int(work.s.sk);
      rows.diagonal = int(work.s.shift);
    }
    rows.limit(s, j0);
  } else {
    const Work<P, C> work(rows.p, rows.x, ptx::opaque(rows.tile));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row<P> row = work.row(rows.p, min(rows.row_at(r), work.rows - 1));
#pragma unroll
      for (int i = 2 * r; i < kS; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = j0 + i / 4 * 8 + rows.lane % 4 * 2 + e;
          float& one = s[i + e];
          if (!row.in_range(j))
            one = -kInf;
          else if constexpr (kScores)
            one = row.template score<false>(rows.x, one * c[r], j, row.mask(rows.x, j));
          else
            one = row.passes(rows.x, j) ? one + row.mask(rows.x, j) : -kInf;
        }
    }
  }
}

// The rows' maxima: `shift` becomes what is taken off, alpha by what sums and O shrink.
//
// Products times c are in units of powers of two, and c is one itself: that is exact, so that the
// largest weight is 1 whatever the size of the scores. Its split has no error then, nor has the
// division at the end: a row that looks at one key alone is as good as V's split.
template <Problem P, WgmmaConfig C>
template <bool First, bool Masked>
__device__ inline void ConsumerF32<P, C>::new_maxima(float (&shift)[2]) {
  float top[2][2];
  row_maxima(s, top);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float one = fmaxf(top[r][0], top[r][1]);
    one = fmaxf(one, __shfl_xor_sync(~0u, one, 1));
    one = fmaxf(one, __shfl_xor_sync(~0u, one, 2));
    if (!kScores) one *= c[r];
    if (!First) one = fmaxf(m[r], one);
    const float off = Masked && one == -kInf ? 0.f : one;
    shift[r] = -off;
    alpha[r] = First ? 0.f : ptx::ex2_approx(kScores ? (m[r] - off) * kLog2e : m[r] - off);
    m[r] = one;
  }
}

// Scores in natural units lose their maximum first: logits of 2^31 lose nothing.
template <Problem P, WgmmaConfig C>
template <int From, int To>
__device__ inline void ConsumerF32<P, C>::exponentials(const float (&shift)[2], float (&sum)[2]) {
#pragma unroll
  for (int i = From; i < To; ++i) {
    const int r = i >> 1 & 1;
    s[i] = ptx::ex2_approx(kScores ? (s[i] + shift[r]) * kLog2e : fmaf(s[i], c[r], shift[r]));
    sum[r] += s[i];
  }
}

template <Problem P, WgmmaConfig C>
template <int From, int To>
__device__ inline void ConsumerF32<P, C>::split_weights(int j0) {
#pragma unroll
  for (int i = From; i < To; i += 2) {
    if constexpr (P.dropout)
      rows.drop(s[i], s[i + 1], i >> 1 & 1, j0 + i / 4 * 8 + rows.lane % 4 * 2);
    split_pair(s[i] * kUp, s[i + 1] * kUp, hi[i / 8][i / 2 % 4], lo[i / 8][i / 2 % 4]);
  }
}

// Weights of the tile; PV of the tile before ends on the way.
template <Problem P, WgmmaConfig C>
template <bool First, bool Masked>
__device__ inline void ConsumerF32<P, C>::softmax(int j0) {
  constexpr int kCut = First ? 0 : kS * C.early_exps / 8 / 8 * 8;
  float shift[2], sum[2] = {};
  new_maxima<First, Masked>(shift);
  exponentials<0, kCut>(shift, sum);
  if (!First) {
    ptx::wgmma_wait_group<0>();
    end_pv();
    rows.v_ring.next();
  }
  split_weights<0, kCut>(j0);
  exponentials<kCut, kS>(shift, sum);
  split_weights<kCut, kS>(j0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    shrink[r] = alpha[r];
    l[r] = (First ? 0.f : l[r] * alpha[r]) + sum[r];
  }
}

}  // namespace attune
