#include "honest.cuh"

int attune_candidate(const attune_candidate_call* call) { return honest(call, stream_of(call)); }
