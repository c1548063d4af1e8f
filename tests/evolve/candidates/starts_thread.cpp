// Leaves its work to a thread that nobody times.
#include <pthread.h>
#include <unistd.h>

#include "candidate.h"

int attune_candidate(const attune_candidate_call*) {
  pthread_t thread;
  return pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        for (;;) pause();
      },
      nullptr);
}
