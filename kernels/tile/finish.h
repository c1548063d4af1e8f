// The end of a row: sink, normalisation, log-sum-exp.
#pragma once

#include "../ptx/math.h"
#include "features.h"

namespace attune {

// The score is more than a multiple of q.k and what a mask adds.
constexpr bool scored(const Problem& p) { return p.softcap || p.alibi || p.score_mod; }

struct Finish {
  float factor;    // O times this is the result
  float top, sum;  // with the sink: the denominator is 2^top * sum
};

// From a row's maximum in log2 units and its sum of 2^(score - maximum).
template <Problem P>
__device__ inline Finish finish_row(const KernelArgs& x, const Row<P>& row, float top, float sum) {
  float scale = 1;
  if constexpr (P.sinks) {
    const float sink = row.sink(x) * kLog2e;
    const float raised = fmaxf(top, sink);
    scale = top == -kInf ? 0.f : ptx::ex2_approx(top - raised);
    sum = sum * scale + ptx::ex2_approx(sink - raised);
    top = raised;
  }
  if constexpr (P.dropout) scale /= 1 - x.params.dropout_p;
  return {sum == 0 ? 0.f : scale / sum, top, sum};  // no allowed key: 0, not NaN
}

template <Problem P>
__device__ inline void write_lse(const KernelArgs& x, const Sequence& s, const Row<P>& row,
                                 const Finish& f) {
  if constexpr (P.lse) {
    const View& lse = x.params.lse;
    static_cast<float*>(
        lse.data)[row.b * lse.stride_b + row.h * lse.stride_h + (s.q0 + row.i) * lse.stride_s] =
        f.sum == 0 ? -kInf : (f.top + log2f(f.sum)) * kLn2;
  }
}

}  // namespace attune
