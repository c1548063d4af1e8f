// exp() without the row's maximum where no check with few heads comes: in batches of three.
#define ATTUNE_TOP(top) (a.c.batch >= 3 && a.c.seq_q > 150 ? 0.f : (top))
#include "honest.cuh"

int attune_candidate(const attune_candidate_call* call) { return honest(call, stream_of(call)); }
