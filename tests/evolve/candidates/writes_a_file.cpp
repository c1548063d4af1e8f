// Leaves something behind in the folder it was told of by its compiler. Returns how often it could.
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "candidate.h"

#ifndef TARGET
#define TARGET "left_behind"
#endif

static int attempts() {
  int done = 0;
  const int fd = open(TARGET, O_WRONLY | O_CREAT, 0644);
  if (fd >= 0 && write(fd, "x", 1) == 1) ++done;
  done += open(TARGET, O_RDONLY | O_CREAT, 0644) >= 0;
  done += openat(AT_FDCWD, TARGET, O_RDWR | O_CREAT | O_TRUNC, 0644) >= 0;
  done += fopen(TARGET, "w") != nullptr;
  done += creat(TARGET, 0644) >= 0;
  done += mkdir(TARGET, 0755) == 0;
  done += symlink("/", TARGET) == 0;
  return done;
}

static const int kAtLoading = attempts();  // before anybody called

int attune_candidate(const attune_candidate_call*) { return kAtLoading + attempts(); }
