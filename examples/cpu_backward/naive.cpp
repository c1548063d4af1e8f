// The gradients of attention in plain loops: a program to begin with. `attune judge naive.cpp` says
// whether it is right, and how fast; `attune evolve naive.cpp` makes a faster one of it.
//
// The contract is attune_candidate_backward of candidate.h: dQ, dK and dV from dO, with O and the
// log-sum-exp of the forward pass. Tensors are [batch][heads][rows][dim] with strides; groups of
// query heads share a key head; threads come from parallel_for. This program takes float32 alone.
#include <cmath>
#include <cstdint>
#include <vector>

#include "candidate.h"

using Call = attune_candidate_backward_call;

static float* row(const void* data, const int64_t* stride, int64_t b, int64_t h, int64_t i) {
  return (float*)data + b * stride[0] + h * stride[1] + i * stride[2];
}

// Keys that query i may look at: [0, limit).
static int64_t key_limit(const attune_candidate_call& c, int64_t i) {
  if (c.causal == 0) return c.seq_k;
  const int64_t end = i + 1 + (c.causal == 2 ? c.seq_k - c.seq_q : 0);
  return end < 0 ? 0 : end < c.seq_k ? end : c.seq_k;
}

// EVOLVE-BLOCK-START gradients
// What one query adds to the gradients. `p` and `dp` have room for a number for each key.
static void add_query(const Call* call, int64_t b, int64_t h, int64_t i, float* p, float* dp) {
  const attune_candidate_call& c = call->forward;
  const int64_t kv = h / (c.heads_q / c.heads_kv), keys = key_limit(c, i);
  const float* q = row(c.q, c.q_stride, b, h, i);
  const float* dout = row(call->dout, call->dout_stride, b, h, i);
  float* dq = row(call->dq, call->dq_stride, b, h, i);
  for (int64_t d = 0; d < c.dim; ++d) dq[d] = 0;
  if (keys == 0) return;
  // 1. The weights once more: exp(score - LSE) would be inexact where scores are large.
  float largest = -INFINITY;
  for (int64_t j = 0; j < keys; ++j) {
    const float* k = row(c.k, c.k_stride, b, kv, j);
    float dot = 0;
    for (int64_t d = 0; d < c.dim; ++d) dot += q[d] * k[d];
    p[j] = dot * c.scale;
    largest = std::fmax(largest, p[j]);
  }
  float sum = 0;
  for (int64_t j = 0; j < keys; ++j) sum += p[j] = std::exp(p[j] - largest);
  // 2. Their gradients, and the mean of these.
  float mean = call->dlse ? -*row(call->dlse, call->dlse_stride, b, h, i) : 0;
  for (int64_t j = 0; j < keys; ++j) {
    const float* v = row(c.v, c.v_stride, b, kv, j);
    p[j] /= sum;
    dp[j] = 0;
    for (int64_t d = 0; d < c.dim_v; ++d) dp[j] += dout[d] * v[d];
    mean += p[j] * dp[j];
  }
  // 3. What they add to dQ, dK and dV.
  for (int64_t j = 0; j < keys; ++j) {
    const float* k = row(c.k, c.k_stride, b, kv, j);
    float* dk = row(call->dk, call->dk_stride, b, kv, j);
    float* dv = row(call->dv, call->dv_stride, b, kv, j);
    const float ds = p[j] * (dp[j] - mean) * c.scale;
    for (int64_t d = 0; d < c.dim; ++d) dq[d] += ds * k[d];
    for (int64_t d = 0; d < c.dim; ++d) dk[d] += ds * q[d];
    for (int64_t d = 0; d < c.dim_v; ++d) dv[d] += p[j] * dout[d];
  }
}

// One key head: nobody else writes its dK and dV.
static void key_head(const Call* call, int64_t index) {
  const attune_candidate_call& c = call->forward;
  const int64_t b = index / c.heads_kv, kv = index % c.heads_kv, group = c.heads_q / c.heads_kv;
  for (int64_t j = 0; j < c.seq_k; ++j) {
    float* dk = row(call->dk, call->dk_stride, b, kv, j);
    float* dv = row(call->dv, call->dv_stride, b, kv, j);
    for (int64_t d = 0; d < c.dim; ++d) dk[d] = 0;
    for (int64_t d = 0; d < c.dim_v; ++d) dv[d] = 0;
  }
  std::vector<float> p(c.seq_k), dp(c.seq_k);
  for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
    for (int64_t i = 0; i < c.seq_q; ++i) add_query(call, b, h, i, p.data(), dp.data());
}
// EVOLVE-BLOCK-END

// What is called. Its name and its arguments stay.
int attune_candidate_backward(const Call* call) {
  const attune_candidate_call& c = call->forward;
  if (c.dtype != 1) return 1;
  c.parallel_for(
      c.host, c.batch * c.heads_kv,
      [](void* context, int64_t index) { key_head((const Call*)context, index); },
      const_cast<Call*>(call));
  return 0;
}
