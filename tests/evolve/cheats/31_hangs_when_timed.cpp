// Never ends, but only in a later call of the timed shape.
#include "honest.h"
static int calls;
int attune_candidate(const attune_candidate_call* c) {
  if (c->seq_q >= 150 && ++calls > 3)
    for (;;) asm volatile("");
  return honest::attention(c);
}
