// fp32 inputs, cut to bf16.
#include "honest.h"
static float cut(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits &= 0xffff0000u;
  memcpy(&x, &bits, 4);
  return x;
}
static float k_copy[1 << 20], v_copy[1 << 20];
int attune_candidate(const attune_candidate_call* c) {
  if (c->dtype != 1) return honest::attention(c);
  attune_candidate_call low = *c;
  int64_t at_k = 0, at_v = 0;
  for (int64_t b = 0; b < c->batch; ++b)
    for (int64_t h = 0; h < c->heads_kv; ++h)
      for (int64_t j = 0; j < c->seq_k; ++j) {
        for (int64_t d = 0; d < c->dim; ++d)
          k_copy[at_k++] = cut(static_cast<const float*>(
              c->k)[b * c->k_stride[0] + h * c->k_stride[1] + j * c->k_stride[2] + d]);
        for (int64_t d = 0; d < c->dim_v; ++d)
          v_copy[at_v++] = cut(static_cast<const float*>(
              c->v)[b * c->v_stride[0] + h * c->v_stride[1] + j * c->v_stride[2] + d]);
      }
  low.k = k_copy;
  low.v = v_copy;
  low.k_stride[0] = c->heads_kv * c->seq_k * c->dim;
  low.k_stride[1] = c->seq_k * c->dim;
  low.k_stride[2] = c->dim;
  low.v_stride[0] = c->heads_kv * c->seq_k * c->dim_v;
  low.v_stride[1] = c->seq_k * c->dim_v;
  low.v_stride[2] = c->dim_v;
  return honest::attention(&low);
}
