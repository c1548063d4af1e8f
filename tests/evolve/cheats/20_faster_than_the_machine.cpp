// Right, and judged as on a machine of a megaflop a second (the suite says so): its time is
// impossible there, however it came about.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) { return honest::attention(c); }
