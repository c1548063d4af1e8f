// Landlock: a process gives up the right to open files, for itself and for all that it starts. It
// needs no privileges, only a kernel that has it (5.13 and later; more of it in later ones).
#pragma once

#include <string>
#include <vector>

#include "src/status.hpp"

namespace attune::evolve {

class Fd;

// Files, and folders with all that lies in them. A path that is not there is passed over. What is
// named nowhere cannot be opened by any path; descriptors that are open stay open, and those of
// memory files (memfd_create) can be opened again under /proc/self/fd.
struct FileAccess {
  std::vector<std::string> read;   // read, listed, executed
  std::vector<std::string> write;  // read, listed, made, changed and removed, but not executed
};

// The version of the kernel's interface; 0: it has none, or it is switched off.
int landlock_abi();

// For a process that a fork is about to make: all that allocates. Where the kernel can, TCP,
// abstract sockets of other processes and signals to them are closed too. "unsupported" where there
// is none.
Status make_ruleset(const FileAccess& access, Fd* ruleset);
// Between fork and exec: for the calling thread, and for what it starts from now on. Returns errno.
int enter_ruleset(int ruleset);

// Both, for a process that has one thread: those that it has already keep their rights.
Status restrict_files(const FileAccess& access);

}  // namespace attune::evolve
