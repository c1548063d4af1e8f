// The online softmax of a 16-bit consumer: a tile's scores become weights, packed as PV takes them,
// and sums and O follow the rows' maxima.
#pragma once

#include "consumer.cuh"

namespace attune {

// The rows' maxima: `shift` becomes what is taken off, alpha by what sums and O shrink. Lazy: a
// row keeps its maximum until the new one is 2^8 larger; the result says that some row did not.
template <Problem P, WgmmaConfig C>
template <bool First, bool Masked>
__device__ inline bool Consumer<P, C>::new_maxima(float (&shift)[2]) {
  float top[2][2];
  row_maxima(s, top);
  bool grew = !First && !C.keeps_maxima();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float t = fmaxf(top[r][0], top[r][1]);
    t = fmaxf(t, __shfl_xor_sync(~0u, t, 1));
    t = fmaxf(t, __shfl_xor_sync(~0u, t, 2));
    if (!First) t = fmaxf(m[r], t);
    if (!First && C.keeps_maxima()) {
      const bool much = !((t - m[r]) * rows.unit <= 8.f);
      grew |= much;
      t = much ? t : m[r];
    }
    const float off = Masked && t == -kInf ? 0.f : t;
    shift[r] = -off * rows.unit;
    // Of what was taken off and what is now: 0 where nothing grew, not the rounding of m * unit,
    // by which each tile would shrink sum and O.
    alpha[r] = First ? 0.f : __fadd_rn(__fmul_rn(m[r], rows.unit), shift[r]);
    if (!First && !C.keeps_maxima()) alpha[r] = ptx::ex2_approx(alpha[r]);
    m[r] = t;
  }
  return grew;
}

template <Problem P, WgmmaConfig C>
template <int From, int To>
__device__ inline void Consumer<P, C>::exponentials(const float (&shift)[2], float (&sum)[2][2]) {
#pragma unroll
  for (int i = From; i < To; ++i) {
    const float t = fmaf(s[i], rows.unit, shift[i >> 1 & 1]);
    s[i] = ptx::ex2_approx(t);
    if (C.sums == RowSums::fp32) sum[i >> 1 & 1][i & 1] += s[i];
  }
}

template <Problem P, WgmmaConfig C>
template <int From, int To>
__device__ inline void Consumer<P, C>::pack_weights(int j0, float (&sum)[2][2]) {
#pragma unroll
  for (int i = From; i < To; i += 2) {
    if constexpr (P.dropout)
      rows.drop(s[i], s[i + 1], i >> 1 & 1, j0 + i / 4 * 8 + rows.lane % 4 * 2);
    const uint32_t pair = pack<P.dtype>(s[i], s[i + 1]);
    // A weight that is alone in its row is no longer exactly 1 where maxima are not the newest:
    // then its rounding stands above and below the fraction.
    if (C.sums == RowSums::rounded) {
      sum[i >> 1 & 1][0] += to_float<P.dtype>(uint16_t(pair));
      sum[i >> 1 & 1][1] += to_float<P.dtype>(uint16_t(pair >> 16));
    }
    w[i / 8][i / 2 % 4] = pair;
  }
}

template <Problem P, WgmmaConfig C>
__device__ inline void Consumer<P, C>::rescale() {
#pragma unroll
  for (int i = 0; i < kO + kSums; ++i) o[i] *= alpha[i >> 1 & 1];
}

// Weights of the tile, in w; PV of the tile before ends on the way, and its V is given back.
template <Problem P, WgmmaConfig C>
template <bool First, bool Masked, bool Maxima, bool PvRuns>
__device__ inline void Consumer<P, C>::softmax(int j0, uint32_t v_empty) {
  constexpr int kCut = !PvRuns ? 0 : kS * C.early_exps / 8 / 8 * 8;
  float shift[2], sum[2][2] = {};
  bool grew = false;
  if constexpr (Maxima) {
    grew = new_maxima<First, Masked>(shift);
    if (kFirstMax)
#pragma unroll
      for (int r = 0; r < 2; ++r) reference[r] = shift[r] -= Room::kBelow;
  } else {
    shift[0] = reference[0], shift[1] = reference[1];
  }
  exponentials<0, kCut>(shift, sum);
  if constexpr (PvRuns) {
    ptx::wgmma_wait_group<0>();
    ptx::pin(o);
    rows.release(v_empty);
  }
  pack_weights<0, kCut>(j0, sum);
  if (!First && !C.keeps_maxima()) rescale();
  exponentials<kCut, kS>(shift, sum);
  pack_weights<kCut, kS>(j0, sum);
  if constexpr (!Maxima) {
    watch_sums();
  } else if (!First && C.keeps_maxima()) {
    if (__any_sync(~0u, grew)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        alpha[r] = ptx::ex2_approx(alpha[r]);
        l[r] *= alpha[r];
      }
      rescale();
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] = (First ? 0.f : C.keeps_maxima() ? l[r] : l[r] * alpha[r]) + (sum[r][0] + sum[r][1]);
    if (kFirstMax && Maxima) alpha[r] = 1;
  }
}

// Without new maxima a weight may be far above 1: bf16 and the fp32 sums have room up to 2^127,
// fp16 up to 2^16. Past kGrown the next tile's weights are made smaller, and, with the tile after
// that, what was summed up before. A tile that goes from below kGrown past all room leaves an
// infinite sum, and its rows are computed again.
template <Problem P, WgmmaConfig C>
__device__ inline void Consumer<P, C>::watch_sums() {
  bool grew = false;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    grew |= alpha[r] != 1 || (kTensorSums ? o[kO + 2 * r] : l[r]) > Room::kGrown;
  if (__any_sync(~0u, grew)) {
    rescale();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] *= alpha[r];
      const float all = kTensorSums ? o[kO + 2 * r] : row_sum(l[r]);
      alpha[r] = all > Room::kGrown ? Room::kShrink : 1;
      if (all > Room::kGrown) reference[r] -= Room::kStep;
    }
  }
}

}  // namespace attune
