// Cannot run, and says so; nobody may take what is in the buffer for a result.
#include "honest.h"
int attune_candidate(const attune_candidate_call*) { return 7; }
