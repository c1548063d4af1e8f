// The last row of dQ is a little too large, where there are many.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  const int code = honest::backward(c);
  const attune_candidate_call& f = c->forward;
  if (f.seq_q < 150) return code;
  float* last = honest::row(c->dq, c->dq_stride, f.batch - 1, f.heads_q - 1, f.seq_q - 1);
  for (int64_t d = 0; d < f.dim; ++d) last[d] *= 1.01f;
  return code;
}
