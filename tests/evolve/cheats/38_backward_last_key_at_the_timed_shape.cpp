// At the timed shape, and longer ones, dV of the last key of one head is a little too small.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  const int code = honest::backward(c);
  const attune_candidate_call& f = c->forward;
  if (f.seq_q < 192 || f.seq_k < 192) return code;
  float* dv = honest::row(c->dv, c->dv_stride, 0, f.heads_kv - 1, f.seq_k - 1);
  for (int64_t d = 0; d < f.dim_v; ++d) dv[d] *= 0.999f;
  return code;
}
