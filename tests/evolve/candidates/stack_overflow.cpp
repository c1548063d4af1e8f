// Calls itself until the stack ends.
#include <string.h>

#include "candidate.h"

static int deeper(volatile char* above) {
  volatile char here[4096];
  here[0] = above[0];
  return deeper(here) + here[0];
}

int attune_candidate(const attune_candidate_call*) {
  volatile char first[1] = {1};
  return deeper(first);
}
