// Leaves a child behind that never ends.
#include <unistd.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  if (fork() == 0)
    for (;;) pause();
  return 0;
}
