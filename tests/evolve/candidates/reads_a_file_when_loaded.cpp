// Returns 1 when its constructor could read no file.
#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

#include "candidate.h"

static int g_read = 0;

__attribute__((constructor)) static void at_loading() {
  char byte;
  for (const char* path : {"/etc/passwd", "/proc/self/maps", "/proc/self/environ"}) {
    const int fd = open(path, O_RDONLY);
    if (fd >= 0 && read(fd, &byte, 1) == 1) g_read = 1;
  }
}

int attune_candidate(const attune_candidate_call*) { return g_read != 0 ? 2 : 1; }
