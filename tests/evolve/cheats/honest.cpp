// The control: it must pass.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) { return honest::attention(c); }
