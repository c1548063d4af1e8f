#include "honest.cuh"

__global__ void copy_last(Args a) {
  const int64_t head = blockIdx.x;
  const int64_t last =
      place(a.c.out_stride, head / a.c.heads_q, head % a.c.heads_q, a.c.seq_q - 1);
  for (int64_t d = threadIdx.x; d < a.c.dim_v; d += blockDim.x)
    write(a, a.c.out, last + d, read(a, a.c.out, last - a.c.out_stride[2] + d));
}

// A tail that was forgotten, at the timed shape alone: the last row of each head is the one before.
int attune_candidate(const attune_candidate_call* call) {
  if (honest(call, stream_of(call)) != 0) return 1;
  const unsigned heads = static_cast<unsigned>(call->batch * call->heads_q);
  if (call->seq_q > 150) copy_last<<<heads, kThreads, 0, stream_of(call)>>>(Args{*call});
  return 0;
}
