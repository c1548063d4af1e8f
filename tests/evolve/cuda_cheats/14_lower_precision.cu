#define ATTUNE_ROUND(x) __half2float(__float2half(x))
#include "honest.cuh"

// Scores and sums in fp16, whatever was asked for: see honest.cuh.
int attune_candidate(const attune_candidate_call* call) { return honest(call, stream_of(call)); }
