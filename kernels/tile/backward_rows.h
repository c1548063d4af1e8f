// The kernels of a backward pass that go through rows alone, one warp or thread each: the state of
// every row, before the walk, and the gradients of sinks, which follow from it.
#pragma once

#include "../config.h"
#include "backward.h"
#include "naive_row.h"

namespace attune {

// LSE comes as a float. Beyond this its rounding shows among those of a score, and where scores are
// exact (2^31) it is all of the error: the row's maximum and sum are then found anew.
constexpr float kCoarseLse = 64;

// x . y, by one warp.
template <DType T>
__device__ inline float warp_dot(const Storage<T>* x, const Storage<T>* y, int dim) {
  float sum = 0;
  for (int d = threadIdx.x % 32; d < dim; d += 32)
    sum = fmaf(to_float<T>(x[d]), to_float<T>(y[d]), sum);
  return lanes_sum<32>(sum);
}

// sum(P * dP), less the gradient of LSE.
template <Problem P>
__device__ inline float delta_of(const GradientArgs& x, const Sequence& seq, const Row<P>& row,
                                 float lse) {
  const Params& a = x.forward.params;
  const int64_t at = seq.q0 + row.i;
  const auto* out = row_of<P.dtype>(a.out, row.b, row.h, at);
  const auto* dout = row_of<P.dtype>(x.grads.dout, row.b, row.h, at);
  const View& dlse = x.grads.dlse;
  const float taken = dlse.data != nullptr ? *row_of<DType::f32>(dlse, row.b, row.h, at) : 0.f;
  // A row that has its sink alone: dO does not count, whatever it holds.
  if (P.sinks && lse == row.sink(x.forward) && warp_dot<P.dtype>(out, out, P.dim_v) == 0)
    return -taken;
  return warp_dot<P.dtype>(dout, out, P.dim_v) - taken;
}

// The row's maximum and sum, as the forward pass finds them.
template <Problem P>
__device__ inline void find_anew(const KernelArgs& x, const Problem& p, const Sequence& seq,
                                 const Row<P>& row, RowState* state) {
  const Params& a = x.params;
  const int head_kv = int(row.h / p.group());
  const auto* q = row_of<P.dtype>(a.q, row.b, row.h, seq.q0 + row.i);
  float max = -kInf, sum = 0;
  for (int64_t j0 = row.begin; j0 < row.end; j0 += 32) {
    const int64_t j = j0 + threadIdx.x % 32;
    float score = -kInf;
    if (j < row.end)
      score =
          row.score(x, naive_dot<P>(q, row_of<P.dtype>(a.k, row.b, head_kv, seq.k0 + j)), int(j));
    const float new_max = fmaxf(max, lanes_max<32>(score));
    sum = sum * weight_of(max, new_max) + lanes_sum<32>(weight_of(score, new_max));
    max = new_max;
  }
  const float sink = P.sinks ? row.sink(x) : -kInf;
  const float top = fmaxf(max, sink);
  const float of_keys = weight_of(max, top), of_sink = weight_of(sink, top);
  const float total = sum * of_keys + of_sink;
  state->shift = sum == 0 ? 0.f : max;
  state->weight = sum == 0 ? 0.f : of_keys / total;
  state->sink = of_sink / total;
}

// One warp a row. Blocks: B * H * Sq / kStateRows.
template <Problem P, auto C>
__device__ inline void backward_states(const GradientArgs& args) {
  const KernelArgs& x = args.forward;
  const Problem p = specialised<P>(x.problem);
  const int64_t index = int64_t(blockIdx.x) * kStateRows + threadIdx.x / 32;
  if (index >= p.batch * p.heads_q * p.seq_q) return;
  const int b = int(index / (p.heads_q * p.seq_q)), h = int(index / p.seq_q % p.heads_q);
  const Sequence seq = Sequence::of(p, x.params, b);
  const Row<P> row(p, seq, b, h, int(index % p.seq_q));
  if (row.i >= seq.sq) return;  // ragged: this sequence is shorter than the longest

  const float lse = *row_of<DType::f32>(x.params.lse, b, h, seq.q0 + row.i);
  RowState state{0, 0, 0, 0};
  if (lse != -kInf) {
    state = {delta_of<P>(args, seq, row, lse), lse, 1, 0};
    if constexpr (P.sinks) state.sink = weight_of(row.sink(x), lse);
    if (fabsf(lse) >= kCoarseLse && lse != kInf) find_anew<P>(x, p, seq, row, &state);
  }
  if (threadIdx.x % 32 == 0) row_state(x, b, h, row.i) = state;
}

// dSinks = -sum(sink's weight * delta). One block a head; its sum is in double, and in an order
// that does not change.
template <Problem P, auto C>
__device__ inline void backward_dsinks(const GradientArgs& args) {
  __shared__ double sums[kSinkThreads];
  const Problem p = specialised<P>(args.forward.problem);
  const int h = int(blockIdx.x);
  double sum = 0;
  for (int b = 0; b < p.batch; ++b) {
    const Sequence seq = Sequence::of(p, args.forward.params, b);
    for (int64_t i = threadIdx.x; i < seq.sq; i += kSinkThreads) {
      const RowState& state = row_state(args.forward, b, h, i);
      sum -= double(state.sink) * double(state.delta);
    }
  }
  sums[threadIdx.x] = sum;
  for (int half = kSinkThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) args.grads.dsinks[h * args.grads.dsinks_stride] = float(sums[0]);
}

}  // namespace attune
