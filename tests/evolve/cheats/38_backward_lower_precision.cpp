// The weights have 8 significant bits.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  return honest::backward(c, {.bf16_weights = true});
}
