// What the kernels of a backward pass share. With P the softmax, F the factors of dropout and delta
// = sum(P * dP):
//
//   dV = (P * F)^T dO,  dP = F * (dO V^T),  dS = P * (dP - delta),  dQ = dS K,  dK = dS^T Q
#pragma once

#include "plain.h"

namespace attune {

// The state of row i, in the workspace.
__device__ inline RowState& row_state(const KernelArgs& x, int b, int h, int64_t i) {
  const Problem& p = x.problem;
  return static_cast<RowState*>(x.params.workspace)[(b * p.heads_q + h) * p.seq_q + i];
}

// The rows that causal limit, window and lengths let look at any of the keys [first, last].
struct RowRange {
  int64_t begin, end;  // empty when begin >= end
};
__device__ inline RowRange row_range(const Problem& p, const Sequence& s, int64_t first,
                                     int64_t last) {
  if (last >= s.sk) last = s.sk - 1;
  RowRange r{0, first <= last ? s.sq : 0};
  // Row i stands at i + shift: the first key limits the rows before it, the last one those after.
  // Windows are compared as differences, so that one near the largest integer cannot overflow.
  const int64_t low = first - s.shift, high = last - s.shift + 1;
  if (p.causal)
    r.begin = low;
  else if (p.window_right != kNoLimit && p.window_right < low)
    r.begin = low - p.window_right;
  if (r.begin < 0) r.begin = 0;
  if (p.window_left != kNoLimit && high < r.end - p.window_left) r.end = high + p.window_left;
  return r;
}

// What one key of one row adds. Both are kNothing where the key is forbidden, and dscore is never
// so elsewhere: where the other operand has Inf or NaN, a product leaves such keys out.
struct Derivative {
  float weight;  // P * F: of dV
  float dscore;  // dS times the derivative of the score by q.k: of dQ and dK; of dMask: dS
};

// From q.k, dO.v and what the mask tensor adds. Of a softcap, d score / d q.k is 1 - tanh^2.
// Exact: as in Row::score.
template <Problem P, bool of_mask = false, bool Exact = true>
__device__ inline Derivative derivative(const KernelArgs& x, const Row<P>& row,
                                        const RowState& state, float dot, float dweight, int j,
                                        float bias) {
  static_assert(!P.score_mod, "the derivative of the caller's code is not known");
  const Params& a = x.params;
  if (!row.in_range(j) || state.weight == 0) return {kNothing, kNothing};
  const float score = row.template score<Exact>(x, dot, j, bias);
  if (score == -kInf) return {kNothing, kNothing};
  // The difference is rounded once and only then scaled: logits of 2^31 lose nothing. Not joined
  // with the score's own product, whose rounding the shift has too.
  float weight = ptx::ex2_approx(__fadd_rn(score, -state.shift) * kLog2e) * state.weight;
  float slope = of_mask ? 1.f : a.scale;
  if constexpr (P.softcap && !of_mask) {
    const float t = Row<P>::template capped<Exact>(dot * a.scale, a.softcap) / a.softcap;
    slope *= 1 - t * t;
  }
  const float p = weight;
  if constexpr (P.dropout) {
    const bool kept = row.kept(x, j);
    const float factor = 1 / (1 - a.dropout_p);
    weight = kept ? weight * factor : kNothing;
    dweight = kept ? dweight * factor : 0.f;
  }
  // The sum with +0 leaves no -0.
  return {weight, fmaf(p * slope, dweight - state.delta, 0.f)};
}

template <Problem P, bool of_mask = false>
__device__ inline Derivative derivative(const KernelArgs& x, const Row<P>& row,
                                        const RowState& state, float dot, float dweight, int j) {
  const bool reads = P.mask != MaskKind::none && row.in_range(j) && state.weight != 0;
  return derivative<P, of_mask>(x, row, state, dot, dweight, j, reads ? row.mask(x, j) : 0.f);
}

}  // namespace attune
