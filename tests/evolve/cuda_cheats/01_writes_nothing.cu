#include "honest.cuh"

__global__ void nothing(Args) {}

int attune_candidate(const attune_candidate_call* call) {
  nothing<<<1, 1, 0, stream_of(call)>>>(Args{*call});
  return 0;
}
