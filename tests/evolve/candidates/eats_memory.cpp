// Takes memory until there is none, and writes to it.
#include <stdlib.h>
#include <string.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  constexpr size_t kBytes = 64 << 20;
  for (;;) {
    void* memory = malloc(kBytes);
    if (memory == nullptr) return 12;
    memset(memory, 1, kBytes);
  }
}
