// Gives up.
#include <stdlib.h>

#include "evolve/candidate.h"

int attune_candidate(const attune_candidate_call*) { abort(); }
