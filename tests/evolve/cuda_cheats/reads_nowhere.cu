#include "honest.cuh"

__global__ void nowhere(float* p) { *p = 1; }

int attune_candidate(const attune_candidate_call* call) {
  nowhere<<<1, 1, 0, stream_of(call)>>>(reinterpret_cast<float*>(uintptr_t{1} << 45));
  return 0;
}
