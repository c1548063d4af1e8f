// The gradient of LSE is taken for 0.
#include "honest_backward.h"
int attune_candidate_backward(const honest::Call* c) {
  return honest::backward(c, {.no_dlse = true});
}
