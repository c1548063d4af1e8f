// A tail that was forgotten, at the timed shape alone: the last row of each head is the one before.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  if (honest::attention(c) != 0) return 1;
  if (c->seq_q < 150) return 0;
  const int64_t size = c->dtype == 1 ? 4 : 2;
  for (int64_t b = 0; b < c->batch; ++b)
    for (int64_t h = 0; h < c->heads_q; ++h) {
      char* last =
          static_cast<char*>(c->out) +
          size * (b * c->out_stride[0] + h * c->out_stride[1] + (c->seq_q - 1) * c->out_stride[2]);
      memcpy(last, last - size * c->out_stride[2], size_t(size * c->dim_v));
    }
  return 0;
}
