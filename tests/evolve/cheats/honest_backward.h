// Plain gradients of attention, as a cheat would wrap them: right for all float32 calls.
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "candidate.h"

namespace honest {

using Call = attune_candidate_backward_call;

// What a cheat leaves out.
struct Knobs {
  bool one_head = false;  // of a group, for dK and dV
  bool no_dlse = false;   // LSE has no gradient
  bool bf16_weights = false;
};

inline float* row(const void* data, const int64_t* stride, int64_t b, int64_t h, int64_t i) {
  return (float*)data + b * stride[0] + h * stride[1] + i * stride[2];
}

inline int64_t keys_of(const attune_candidate_call& c, int64_t i) {
  int64_t end = c.seq_k;
  if (c.causal == 1 && i + 1 < end) end = i + 1;
  if (c.causal == 2 && i + 1 + c.seq_k - c.seq_q < end) end = i + 1 + c.seq_k - c.seq_q;
  return end < 0 ? 0 : end;
}

inline float as_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  memcpy(&x, &bits, 4);
  return x;
}

inline void query(const Call* call, int64_t b, int64_t h, int64_t i, float* p, float* dp,
                  const Knobs& knobs) {
  const attune_candidate_call& c = call->forward;
  const int64_t group = c.heads_q / c.heads_kv, kv = h / group, keys = keys_of(c, i);
  const float* q = row(c.q, c.q_stride, b, h, i);
  const float* dout = row(call->dout, call->dout_stride, b, h, i);
  float* dq = row(call->dq, call->dq_stride, b, h, i);
  memset(dq, 0, size_t(c.dim) * sizeof(float));
  if (keys == 0) return;
  float largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const float* k = row(c.k, c.k_stride, b, kv, j);
    float dot = 0;
    for (int64_t d = 0; d < c.dim; ++d) dot += q[d] * k[d];
    p[j] = dot * c.scale;
    largest = fmaxf(largest, p[j]);
  }
  for (int64_t j = 0; j < keys; ++j) sum += p[j] = expf(p[j] - largest);
  const bool own = call->dlse != nullptr && !knobs.no_dlse;
  float mean = own ? -*row(call->dlse, call->dlse_stride, b, h, i) : 0;
  for (int64_t j = 0; j < keys; ++j) {
    const float* v = row(c.v, c.v_stride, b, kv, j);
    p[j] /= sum;
    if (knobs.bf16_weights) p[j] = as_bf16(p[j]);
    dp[j] = 0;
    for (int64_t d = 0; d < c.dim_v; ++d) dp[j] += dout[d] * v[d];
    mean += p[j] * dp[j];
  }
  const bool adds = !knobs.one_head || h % group == 0;
  for (int64_t j = 0; j < keys; ++j) {
    const float* k = row(c.k, c.k_stride, b, kv, j);
    float* dk = row(call->dk, call->dk_stride, b, kv, j);
    float* dv = row(call->dv, call->dv_stride, b, kv, j);
    const float ds = p[j] * (dp[j] - mean) * c.scale;
    for (int64_t d = 0; d < c.dim; ++d) dq[d] += ds * k[d];
    if (!adds) continue;
    for (int64_t d = 0; d < c.dim; ++d) dk[d] += ds * q[d];
    for (int64_t d = 0; d < c.dim_v; ++d) dv[d] += p[j] * dout[d];
  }
}

inline void fill_keys(const Call* call, void* data, const int64_t* stride, int64_t dim) {
  const attune_candidate_call& c = call->forward;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads_kv; ++h)
      for (int64_t j = 0; j < c.seq_k; ++j)
        memset(row(data, stride, b, h, j), 0, size_t(dim) * sizeof(float));
}

inline int backward(const Call* call, const Knobs& knobs = {}) {
  const attune_candidate_call& c = call->forward;
  if (c.dtype != 1) return 1;
  fill_keys(call, call->dk, call->dk_stride, c.dim);
  fill_keys(call, call->dv, call->dv_stride, c.dim_v);
  float* p = (float*)malloc(2 * size_t(c.seq_k) * sizeof(float));
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads_q; ++h)
      for (int64_t i = 0; i < c.seq_q; ++i) query(call, b, h, i, p, p + c.seq_k, knobs);
  free(p);
  return 0;
}

}  // namespace honest
