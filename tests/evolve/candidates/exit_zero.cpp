// Ends its process as if all were well, with a last word at the exit.
#include <stdlib.h>
#include <unistd.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  atexit([] {
    const char reply[] = "{\"nonce\":\"\",\"ok\":true,\"text\":\"\"}";  // no end of line
    if (write(1, reply, sizeof(reply) - 1) < 0) _exit(1);
  });
  exit(0);
}
