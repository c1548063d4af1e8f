// Sleeps in every sample but the first ones, each time for less than the limit of one.
#include <sys/syscall.h>

#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  static int calls;
  const int result = honest::attention(c);
  if (c->seq_q < 150 || ++calls <= 2) return result;
  const long pause[2] = {1, 900'000'000};
#if defined(__x86_64__)
  long ignored;
  asm volatile("syscall"
               : "=a"(ignored)
               : "a"(SYS_nanosleep), "D"(pause), "S"(0)
               : "rcx", "r11", "memory");
#else
  for (volatile long n = pause[1]; n > 0; n = n - 1) {
  }
#endif
  return result;
}
