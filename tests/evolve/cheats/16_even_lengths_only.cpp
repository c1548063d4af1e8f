// Tails are left out.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  attune_candidate_call cut = *c;
  if (cut.seq_k >= 16) cut.seq_k = cut.seq_k / 16 * 16;
  if (cut.causal == 2) cut.seq_k = c->seq_k;
  return honest::attention(&cut);
}
