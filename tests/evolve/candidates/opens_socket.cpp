// Wants to call home.
#include <sys/socket.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  return socket(AF_INET, SOCK_STREAM, 0) >= 0 ? 1 : 2;
}
