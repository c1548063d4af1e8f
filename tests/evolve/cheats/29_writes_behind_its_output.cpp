// A stray write, farther behind the output than a canary reaches, at the timed shape alone.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  const int result = honest::attention(c);
  if (c->seq_q < 150) return result;
  const int64_t elements = c->batch * c->heads_q * c->seq_q * c->dim_v;
  for (int64_t n = 64; n < 96; ++n) honest::store(c, elements + n, 1);
  return result;
}
