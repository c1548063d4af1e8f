#include "honest.cuh"

// A stray write of 64 KB that begins behind the output's canary: other outputs lie there.
__global__ void behind(Args a) {
  const int64_t elements = a.c.batch * a.c.heads_q * a.c.seq_q * a.c.dim_v;
  for (int64_t n = threadIdx.x; n < 16384; n += blockDim.x) write(a, a.c.out, elements + 64 + n, 1);
}

int attune_candidate(const attune_candidate_call* call) {
  const int code = honest(call, stream_of(call));
  if (call->seq_q > 150) behind<<<1, kThreads, 0, stream_of(call)>>>(Args{*call});
  return code;
}
