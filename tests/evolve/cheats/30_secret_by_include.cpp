// The compiler reads a file of the user, and its complaint would quote it.
#include "/etc/passwd"
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) { return honest::attention(c); }
