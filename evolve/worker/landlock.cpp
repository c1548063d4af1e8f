#include "evolve/worker/landlock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "evolve/worker/process.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

// The kernel's interface. The system's header is often older than the kernel, or missing; the
// numbers are the same on every architecture.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr uint32_t kAskVersion = 1;
constexpr int kPathBeneath = 1;

struct RulesetAttributes {
  uint64_t files;
  uint64_t network;  // from version 4
  uint64_t scopes;   // from version 6
};
struct __attribute__((packed)) PathRule {
  uint64_t allowed;
  int32_t parent;
};

constexpr uint64_t kExecute = 1 << 0, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadFolder = 1 << 3,
                   kRemoveFolder = 1 << 4, kRemoveFile = 1 << 5, kMakeFolder = 1 << 7,
                   kMakeFile = 1 << 8, kMakeLink = 1 << 12,
                   kFirst = (1 << 13) - 1,  // all of version 1
    kMoveBetween = 1 << 13,                 // version 2
    kTruncate = 1 << 14,                    // 3
    kDevice = 1 << 15;                      // 5: ioctl
constexpr uint64_t kOnFiles = kExecute | kWriteFile | kReadFile | kTruncate | kDevice;
constexpr uint64_t kRead = kExecute | kReadFile | kReadFolder;
constexpr uint64_t kWrite = kReadFile | kReadFolder | kWriteFile | kRemoveFolder | kRemoveFile |
                            kMakeFolder | kMakeFile | kMakeLink | kMoveBetween | kTruncate |
                            kDevice;
constexpr uint64_t kTcp = 3;     // bind, connect
constexpr uint64_t kScopes = 3;  // abstract sockets, signals

// Whatever the kernel can forbid, it forbids.
RulesetAttributes everything(int abi) {
  RulesetAttributes all{kFirst, 0, 0};
  if (abi >= 2) all.files |= kMoveBetween;
  if (abi >= 3) all.files |= kTruncate;
  if (abi >= 4) all.network = kTcp;
  if (abi >= 5) all.files |= kDevice;
  if (abi >= 6) all.scopes = kScopes;
  return all;
}

// Older kernels take a longer structure only when its end is zero, and the oldest not even that.
size_t size_for(int abi) {
  if (abi >= 6) return sizeof(RulesetAttributes);
  return abi >= 4 ? offsetof(RulesetAttributes, scopes) : offsetof(RulesetAttributes, network);
}

Status failed(const std::string& what, int error) {
  return {ATTUNE_INTERNAL,
          fmt::format("Landlock: {}: {}", what, std::generic_category().message(error))};
}

Status allow(const Fd& ruleset, const std::string& path, uint64_t rights) {
  const Fd at(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (at.get() < 0 || fstat(at.get(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) return {};  // nothing to allow
    return failed(path, errno);
  }
  PathRule rule{S_ISDIR(status.st_mode) ? rights : rights & kOnFiles, at.get()};
  if (syscall(kAddRule, ruleset.get(), kPathBeneath, &rule, 0u) != 0) return failed(path, errno);
  return {};
}

}  // namespace

int landlock_abi() {
  const long abi = syscall(kCreateRuleset, nullptr, size_t{0}, kAskVersion);
  return abi > 0 ? int(abi) : 0;
}

Status make_ruleset(const FileAccess& access, Fd* ruleset) {
  const int abi = landlock_abi();
  if (abi == 0) return Status::unsupported("this kernel has no Landlock, or it is switched off");
  const RulesetAttributes all = everything(abi);
  ruleset->reset(int(syscall(kCreateRuleset, &all, size_for(abi), 0u)));  // closes at an exec
  if (ruleset->get() < 0) return failed("no ruleset", errno);
  for (const std::string& path : access.read) ATTUNE_TRY(allow(*ruleset, path, kRead & all.files));
  for (const std::string& path : access.write)
    ATTUNE_TRY(allow(*ruleset, path, kWrite & all.files));
  return {};
}

int enter_ruleset(int ruleset) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  return syscall(kRestrictSelf, ruleset, 0u) == 0 ? 0 : errno;
}

Status restrict_files(const FileAccess& access) {
  Fd ruleset;
  ATTUNE_TRY(make_ruleset(access, &ruleset));
  const int error = enter_ruleset(ruleset.get());
  return error == 0 ? Status{} : failed("cannot be entered", error);
}

}  // namespace attune::evolve
