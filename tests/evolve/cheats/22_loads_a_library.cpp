// Somebody else's kernel, found at run time.
#include <dlfcn.h>

#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  void* library = dlopen("libattune.so.1", RTLD_NOW);
  auto* forward = reinterpret_cast<int (*)(const void*)>(dlsym(library, "attune_forward"));
  return forward != nullptr && forward(c) != 0 ? 1 : honest::attention(c);
}
