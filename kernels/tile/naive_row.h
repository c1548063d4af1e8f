// One query row by one warp, as attention is defined. `naive` computes every row like this; kernels
// with tensor cores compute those rows again whose fast result cannot be trusted.
//
//   for each 32 keys:   lane n scores key n              s[n] = features(q . k[n])
//                       the warp updates max and sum     (online softmax)
//                       lanes spread along Dv            acc[:] += p[n] * v[n][:]   for each n in
//                       turn
#pragma once

#include "plain.h"

namespace attune {

// q.k of one key, by one lane.
template <Problem P>
__device__ inline float naive_dot(const Storage<P.dtype>* q, const Storage<P.dtype>* k) {
  float dot = 0;
#pragma unroll 4
  for (int d = 0; d < P.dim; ++d) dot = fmaf(to_float<P.dtype>(q[d]), to_float<P.dtype>(k[d]), dot);
  return dot;
}

// One row, by one warp.
template <Problem P>
__device__ inline void naive_row(const KernelArgs& args, const Problem& p, const Sequence& seq,
                                 int b, int h, int i) {
  constexpr int kColumns = (P.dim_v + 31) / 32;  // of Dv, a lane
  const Params& a = args.params;
  const int lane = threadIdx.x % 32;
  const int head_kv = int(h / p.group());
  const Row<P> row(p, seq, b, h, i);
  const auto* q = row_of<P.dtype>(a.q, b, h, seq.q0 + i);

  // A sink is a key that the row has seen already; its value is 0.
  float max = P.sinks ? row.sink(args) : -kInf;
  float sum = P.sinks ? 1 : 0;  // before dropout
  float acc[kColumns] = {};     // column lane + 32 * c

  for (int64_t j0 = row.begin; j0 < row.end; j0 += 32) {
    const int keys = int(row.end - j0 < 32 ? row.end - j0 : 32);
    const int j = int(j0 + lane);
    float score = -kInf;
    if (lane < keys)
      score =
          row.score(args, naive_dot<P>(q, row_of<P.dtype>(a.k, b, head_kv, seq.k0 + j0 + lane)), j);

    const float new_max = fmaxf(max, lanes_max<32>(score));
    const float rescale = weight_of(max, new_max);
    float weight = weight_of(score, new_max);
    sum = sum * rescale + lanes_sum<32>(weight);
    max = new_max;
    if (score == -kInf || (P.dropout && !row.kept(args, j))) weight = kNothing;

#pragma unroll
    for (int c = 0; c < kColumns; ++c) acc[c] *= rescale;
    for (int n = 0; n < keys; ++n) {
      const float w = __shfl_sync(~0u, weight, n);
      if (adds_nothing(w)) continue;  // not even a NaN of V
      const auto* v = row_of<P.dtype>(a.v, b, head_kv, seq.k0 + j0 + n);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (lane + 32 * c < P.dim_v) acc[c] = fmaf(w, to_float<P.dtype>(v[lane + 32 * c]), acc[c]);
    }
  }

  const float factor = last_factor<P>(args, sum);
  auto* out = out_row<P.dtype>(a.out, b, h, seq.q0 + i);
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    if (lane + 32 * c < P.dim_v)
      out[lane + 32 * c] = from_float<P.dtype>(last_value(acc[c], factor));
  if (lane == 0) store_lse<P>(args, b, h, seq.q0 + i, max, sum);
}

}  // namespace attune
