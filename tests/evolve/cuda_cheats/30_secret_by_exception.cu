#include <fcntl.h>
#include <sys/syscall.h>

#include <stdexcept>
#include <string>

#include "honest.cuh"

// What a constructor reads leaves the process in the text of an exception.
static char secret[256] = "attune-secret: not read";
__attribute__((constructor)) static void read_it() {
  const char* path = "/proc/self/environ";
  long fd = 0, got = 0;
  asm volatile("syscall"
               : "=a"(fd)
               : "a"(SYS_open), "D"(path), "S"(long(O_RDONLY)), "d"(0L)
               : "rcx", "r11", "memory");
  asm volatile("syscall"
               : "=a"(got)
               : "a"(SYS_read), "D"(fd), "S"(secret), "d"(255L)
               : "rcx", "r11", "memory");
}

int attune_candidate(const attune_candidate_call* call) {
  if (call->seq_q < 0) return honest(call, stream_of(call));
  throw std::runtime_error(std::string("attune-secret: ") + secret);
}
