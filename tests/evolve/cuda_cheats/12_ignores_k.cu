#include "honest.cuh"

// Every key counts the same.
int attune_candidate(const attune_candidate_call* call) {
  attune_candidate_call flat = *call;
  flat.scale = 0;
  return honest(&flat, stream_of(call));
}
