// Writes where nothing is.
#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  volatile int* nowhere = reinterpret_cast<int*>(16);
  *nowhere = 1;
  return 0;
}
