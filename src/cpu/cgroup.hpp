// The processor time that the process's control groups leave it.
#pragma once

#include <functional>
#include <string>

namespace attune::cpu {

// The text of a file; empty when there is none.
using ReadFile = std::function<std::string(const std::string& path)>;

// The smallest CPU quota of the process's control group and those above it, version 2 or 1, in
// whole processors, rounded up; 0 when none is set. Reads /proc/self/cgroup, and what it names
// under /sys/fs/cgroup.
int quota_processors(const ReadFile& read);

}  // namespace attune::cpu
