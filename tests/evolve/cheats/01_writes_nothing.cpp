// The output buffer may still hold somebody's right result.
#include "honest.h"
int attune_candidate(const attune_candidate_call*) { return 0; }
