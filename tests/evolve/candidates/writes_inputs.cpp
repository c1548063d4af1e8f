// Inputs can only be read.
#include "candidate.h"

int attune_candidate(const attune_candidate_call* call) {
  *static_cast<volatile float*>(const_cast<void*>(call->q)) = 1;
  return 0;
}
