// Changes what the forward pass gave.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  c->forward.lse[0] = 0;
  return honest::backward(c);
}
