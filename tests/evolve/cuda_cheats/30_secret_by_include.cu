// The compiler reads a file of the user, and its complaint would quote it.
#include "/etc/passwd"
#include "honest.cuh"

int attune_candidate(const attune_candidate_call* call) { return honest(call, stream_of(call)); }
