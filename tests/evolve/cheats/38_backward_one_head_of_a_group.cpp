// dK and dV have what the first query head of a group adds.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  return honest::backward(c, {.one_head = true});
}
