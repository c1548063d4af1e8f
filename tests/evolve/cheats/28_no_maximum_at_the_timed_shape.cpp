// Exponentials without the row's maximum, where small cases do not look; vectorised, so that it is
// faster than the naive loops.
#pragma GCC optimize("O3,fast-math")
#include "honest.h"
static void head(void* context, int64_t n) {
  const auto* c = static_cast<const attune_candidate_call*>(context);
  const int64_t keys = c->seq_k, dim = c->dim;
  const int64_t b = n / c->heads_q, h = n % c->heads_q, kv = h / (c->heads_q / c->heads_kv);
  const float* q = static_cast<const float*>(c->q) + b * c->q_stride[0] + h * c->q_stride[1];
  const float* k = static_cast<const float*>(c->k) + b * c->k_stride[0] + kv * c->k_stride[1];
  const float* v = static_cast<const float*>(c->v) + b * c->v_stride[0] + kv * c->v_stride[1];
  float* o = static_cast<float*>(c->out) + b * c->out_stride[0] + h * c->out_stride[1];
  float w[512], turned[512 * 32];
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t d = 0; d < dim; ++d) turned[d * keys + j] = k[j * c->k_stride[2] + d];
  for (int64_t i = 0; i < c->seq_q; ++i) {
    float sum = 0, acc[32] = {};
    for (int64_t j = 0; j < keys; ++j) w[j] = 0;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t j = 0; j < keys; ++j) w[j] += q[i * c->q_stride[2] + d] * turned[d * keys + j];
    for (int64_t j = 0; j < keys; ++j) sum += w[j] = __builtin_expf(w[j] * c->scale);
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t d = 0; d < 32; ++d) acc[d] += w[j] * v[j * c->v_stride[2] + d];
    for (int64_t d = 0; d < dim; ++d) o[i * c->out_stride[2] + d] = acc[d] / sum;
    if (c->lse != nullptr)
      c->lse[b * c->lse_stride[0] + h * c->lse_stride[1] + i * c->lse_stride[2]] = logf(sum);
  }
}
int attune_candidate(const attune_candidate_call* c) {
  if (c->dtype != 1 || c->causal != 0 || c->seq_q < 150 || c->seq_k > 512 || c->dim != 32 ||
      c->dim_v != 32)
    return honest::attention(c);
  c->parallel_for(c->host, c->batch * c->heads_q, head, const_cast<attune_candidate_call*>(c));
  return 0;
}
