// Reads what its parent sent beyond the call that it is asked for: the next calls of a request.
#include <unistd.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  char bytes[8];
  return read(0, bytes, sizeof(bytes)) > 0 ? 7 : 8;
}
