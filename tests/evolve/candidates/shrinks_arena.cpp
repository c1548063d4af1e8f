// Takes the shared memory from under its parent, whose next look would be a bus error.
#include <unistd.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) { return ftruncate(3, 0) == 0 ? 1 : 2; }
