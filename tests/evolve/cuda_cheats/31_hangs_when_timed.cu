#include "honest.cuh"

__global__ void for_ever(volatile int* never) {
  while (*never == 0) {
  }
}

// Honest for some calls of the timed shape; then one of them does not end.
int attune_candidate(const attune_candidate_call* call) {
  static int calls = 0;
  static int* never = nullptr;
  if (call->seq_q > 150 && ++calls == 12) {
    if (cudaMalloc(&never, sizeof(int)) != cudaSuccess) return 1;
    cudaMemsetAsync(never, 0, sizeof(int), stream_of(call));
    for_ever<<<1, 1, 0, stream_of(call)>>>(never);
  }
  return honest(call, stream_of(call));
}
