#include "honest.cuh"

// One part in a hundred, on one element of each row.
__global__ void shift(Args a) {
  const attune_candidate_call& c = a.c;
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= c.batch * c.heads_q * c.seq_q) return;
  const int64_t i = row % c.seq_q, h = row / c.seq_q % c.heads_q, b = row / c.seq_q / c.heads_q;
  const int64_t at = place(c.out_stride, b, h, i);
  write(a, c.out, at, read(a, c.out, at) * 1.01f);
}

int attune_candidate(const attune_candidate_call* call) {
  const int code = honest(call, stream_of(call));
  shift<<<blocks_of(call), kThreads, 0, stream_of(call)>>>(Args{*call});
  return code;
}
