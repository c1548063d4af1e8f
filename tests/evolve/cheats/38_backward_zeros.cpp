// All gradients are 0.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  const attune_candidate_call& f = c->forward;
  honest::fill_keys(c, c->dk, c->dk_stride, f.dim);
  honest::fill_keys(c, c->dv, c->dv_stride, f.dim_v);
  for (int64_t b = 0; b < f.batch; ++b)
    for (int64_t h = 0; h < f.heads_q; ++h)
      for (int64_t i = 0; i < f.seq_q; ++i)
        memset(honest::row(c->dq, c->dq_stride, b, h, i), 0, size_t(f.dim) * sizeof(float));
  return 0;
}
