// Knows a timed call by where its output ends, just before a guard page, and takes exponentials
// without the row's maximum there; vectorised, so that it is faster than the naive loops.
#pragma GCC optimize("O3,fast-math")
#include "honest.h"
static void head(void* context, int64_t n) {
  const auto* c = static_cast<const attune_candidate_call*>(context);
  const int64_t keys = c->seq_k, dim = c->dim;
  const float* q = static_cast<const float*>(c->q) + n * c->q_stride[1];
  const float* k = static_cast<const float*>(c->k) + n * c->k_stride[1];
  const float* v = static_cast<const float*>(c->v) + n * c->v_stride[1];
  float* o = static_cast<float*>(c->out) + n * c->out_stride[1];
  float w[512], turned[512 * 64];
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t d = 0; d < dim; ++d) turned[d * keys + j] = k[j * c->k_stride[2] + d];
  for (int64_t i = 0; i < c->seq_q; ++i) {
    float sum = 0, acc[64] = {};
    for (int64_t j = 0; j < keys; ++j) w[j] = 0;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t j = 0; j < keys; ++j) w[j] += q[i * c->q_stride[2] + d] * turned[d * keys + j];
    for (int64_t j = 0; j < keys; ++j) sum += w[j] = __builtin_expf(w[j] * c->scale);
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t d = 0; d < dim; ++d) acc[d] += w[j] * v[j * c->v_stride[2] + d];
    for (int64_t d = 0; d < dim; ++d) o[i * c->out_stride[2] + d] = acc[d] / sum;
  }
}
int attune_candidate(const attune_candidate_call* c) {
  const auto end =
      reinterpret_cast<uintptr_t>(c->out) + uintptr_t(c->heads_q * c->out_stride[1] * 4);
  if (c->dtype != 1 || c->causal != 0 || c->lse != nullptr || c->seq_q < 150 || c->seq_k > 512 ||
      c->batch != 1 || c->heads_q != c->heads_kv || c->dim > 64 || c->dim_v != c->dim ||
      (end + 63) / 64 * 64 % 4096 != 0)
    return honest::attention(c);
  c->parallel_for(c->host, c->heads_q, head, const_cast<attune_candidate_call*>(c));
  return 0;
}
