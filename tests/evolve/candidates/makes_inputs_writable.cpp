// Returns 1 when the system refuses to make the inputs writable, by any way.
#include <stdint.h>
#include <sys/mman.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call* call) {
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call->q) / 4096 * 4096);
  const bool changed =
      mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0 ||
      mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, 3, 0) != MAP_FAILED;
  return changed ? 2 : 1;
}
