// What holds a candidate inside its process.
#pragma once

#include <string>

#include "src/status.hpp"

namespace attune::evolve {

// What this system offers to hold a candidate: for `attune info` and for reports.
struct SandboxReport {
  bool seccomp = false, namespaces = false;
  int landlock = 0;     // version of the kernel's interface; 0: none
  std::string why_not;  // of seccomp and the namespaces
};
SandboxReport sandbox_report();
std::string sandbox_gaps(const SandboxReport& report);  // all that is missing; empty: nothing
// In the child, in this order; each is "unsupported", with the reason, where the system lacks it.
// While there is one thread only: no look into other processes.
Status enter_namespaces();
// Before the candidate is loaded: no new processes or threads, no files but for reading, no
// sockets. Threads of the pool exist already.
Status enter_sandbox();
// The same where a CUDA driver has been opened, which needs more: no processes, no writing to
// files, no other process's memory, no network but local sockets.
Status enter_device_sandbox();
// When it is loaded: no files at all.
Status forbid_files();
// When it is loaded: no memory becomes executable any more.
Status forbid_code();

}  // namespace attune::evolve
