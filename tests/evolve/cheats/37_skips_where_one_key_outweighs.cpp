// Right, and fast where one key is so long that it has all of a row's weight: the row is that key's
// row of V. Data of users have no such keys, so that must bring nothing in timed calls.
#include "honest.h"
static float length_of(const attune_candidate_call* c, const void* data, int64_t at) {
  float squares = 0;
  for (int64_t d = 0; d < c->dim; ++d) {
    const float x = honest::load(c, data, at + d);
    squares += x * x;
  }
  return sqrtf(squares);
}
static void head(void* context, int64_t n) {
  const auto* c = static_cast<const attune_candidate_call*>(context);
  const int64_t b = n / c->heads_q, h = n % c->heads_q, kv = h / (c->heads_q / c->heads_kv);
  const int64_t k0 = b * c->k_stride[0] + kv * c->k_stride[1];
  const int64_t v0 = b * c->v_stride[0] + kv * c->v_stride[1];
  float longest = -1, second = 0;
  int64_t key = 0;
  for (int64_t j = 0; j < c->seq_k; ++j) {
    const float length = length_of(c, c->k, k0 + j * c->k_stride[2]);
    if (length > longest) {
      second = longest;
      longest = length;
      key = j;
    } else if (length > second) {
      second = length;
    }
  }
  float w[honest::kMostKeys];
  for (int64_t i = 0; i < c->seq_q; ++i) {
    const int64_t q0 = b * c->q_stride[0] + h * c->q_stride[1] + i * c->q_stride[2];
    float score = 0;
    for (int64_t d = 0; d < c->dim; ++d)
      score += honest::load(c, c->q, q0 + d) * honest::load(c, c->k, k0 + key * c->k_stride[2] + d);
    const float most_of_others = length_of(c, c->q, q0) * second;
    if (c->lse != nullptr || key >= honest::keys_of(c, i) ||
        !(c->scale * (score - most_of_others) > 120)) {
      honest::row(c, b, h, i, w);
      continue;
    }
    const int64_t o0 = b * c->out_stride[0] + h * c->out_stride[1] + i * c->out_stride[2];
    for (int64_t d = 0; d < c->dim_v; ++d)
      honest::store(c, o0 + d, honest::load(c, c->v, v0 + key * c->v_stride[2] + d));
  }
}
int attune_candidate(const attune_candidate_call* c) {
  if (c->seq_k > honest::kMostKeys) return 1;
  c->parallel_for(c->host, c->batch * c->heads_q, head, const_cast<attune_candidate_call*>(c));
  return 0;
}
