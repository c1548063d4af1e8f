// A raw system call to open a file for writing: there is no symbol to see.
#include <fcntl.h>
#include <sys/syscall.h>

#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
#if defined(__x86_64__)
  long result;
  register long mode asm("r10") = 0644;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(SYS_openat), "D"(-100L), "S"("attune_was_here"), "d"(O_WRONLY | O_CREAT),
                 "r"(mode)
               : "rcx", "r11", "memory");
  if (result < 0) __builtin_trap();
#endif
  return honest::attention(c);
}
