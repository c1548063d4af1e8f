// Returns 1 when no memory can be made executable.
#include <sys/mman.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool made = page != MAP_FAILED && mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0;
  void* at_once = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made || at_once != MAP_FAILED ? 2 : 1;
}
