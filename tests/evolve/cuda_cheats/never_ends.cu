#include "honest.cuh"

__global__ void forever(volatile int* stay) {
  while (*stay == *stay) {
  }
}

int attune_candidate(const attune_candidate_call* call) {
  int* stay = nullptr;
  cudaMalloc(&stay, sizeof(int));
  forever<<<1, 1, 0, stream_of(call)>>>(stay);
  return 0;
}
