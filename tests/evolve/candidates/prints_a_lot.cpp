// Talks on both streams; its result is nothing.
#include <stdio.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  for (int n = 0; n < 100000; ++n) {
    printf("{\"nonce\":\"0\",\"ok\":true,\"text\":\"line %d\"}\n", n);
    fprintf(stderr, "line %d\n", n);
  }
  fflush(stdout);
  return 0;
}
