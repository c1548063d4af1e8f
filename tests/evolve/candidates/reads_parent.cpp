// Looks for the expected result in its parent's memory: opens it when it is loaded, and again when
// it is called, where no file at all opens any more. Returns how often it could.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "candidate.h"

static int g_fd = -1;

static int look(const char* file) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/%s", (int)getppid(), file);
  return open(path, O_RDONLY);
}

__attribute__((constructor)) static void at_loading() { g_fd = look("mem"); }

int attune_candidate(const attune_candidate_call*) {
  char byte;
  const bool kept = pread(g_fd, &byte, 1, 0x1000) >= 0 || lseek(g_fd, 0, SEEK_SET) >= 0;
  return kept + (look("mem") >= 0) + (look("maps") >= 0) + (open("/proc/self/maps", O_RDONLY) >= 0);
}
