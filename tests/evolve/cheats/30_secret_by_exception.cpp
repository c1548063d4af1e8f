// What a constructor reads leaves the process in the text of an exception.
#include <fcntl.h>
#include <sys/syscall.h>

#include <stdexcept>

#include "honest.h"
static char secret[256] = "attune-secret: not read";
__attribute__((constructor)) static void read_it() {
#if defined(__x86_64__)
  const char* path = "/proc/self/environ";
  long fd, got;
  register long mode asm("r10") = 0;
  asm volatile("syscall"
               : "=a"(fd)
               : "a"(SYS_openat), "D"(-100L), "S"(path), "d"(long(O_RDONLY)), "r"(mode)
               : "rcx", "r11", "memory");
  asm volatile("syscall"
               : "=a"(got)
               : "a"(SYS_read), "D"(fd), "S"(secret), "d"(255L)
               : "rcx", "r11", "memory");
#endif
}
int attune_candidate(const attune_candidate_call*) {
  throw std::runtime_error(std::string("attune-secret: ") + secret);
}
