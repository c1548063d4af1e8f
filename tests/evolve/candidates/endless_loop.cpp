// Never comes back.
#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  for (volatile int n = 0;; ++n) {
  }
}
