// exp without subtracting the row's maximum: right until a logit is large.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  float w[honest::kMostKeys];
  for (int64_t b = 0; b < c->batch; ++b)
    for (int64_t h = 0; h < c->heads_q; ++h)
      for (int64_t i = 0; i < c->seq_q; ++i) {
        honest::row(c, b, h, i, w);  // for lse
        const int64_t kv = h / (c->heads_q / c->heads_kv), keys = honest::keys_of(c, i);
        float sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          float s = 0;
          for (int64_t d = 0; d < c->dim; ++d)
            s += honest::load(c, c->q,
                              b * c->q_stride[0] + h * c->q_stride[1] + i * c->q_stride[2] + d) *
                 honest::load(c, c->k,
                              b * c->k_stride[0] + kv * c->k_stride[1] + j * c->k_stride[2] + d);
          sum += w[j] = expf(s * c->scale);
        }
        for (int64_t d = 0; d < c->dim_v && keys > 0; ++d) {
          float o = 0;
          for (int64_t j = 0; j < keys; ++j)
            o += w[j] *
                 honest::load(c, c->v,
                              b * c->v_stride[0] + kv * c->v_stride[1] + j * c->v_stride[2] + d);
          honest::store(c, b * c->out_stride[0] + h * c->out_stride[1] + i * c->out_stride[2] + d,
                        o / sum);
        }
      }
  return 0;
}
