#include "honest.cuh"

// The device's, as far as it goes; then the result cannot be right for want of it.
int attune_candidate(const attune_candidate_call* call) {
  void* block = nullptr;
  while (cudaMalloc(&block, size_t{1} << 30) == cudaSuccess) {
  }
  return 1;
}
