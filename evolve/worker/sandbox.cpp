// What holds a candidate inside its process. A filter of system calls does the work; a user
// namespace takes away the right to look into the parent's memory, which the filter, blind to
// paths, cannot.
#include "evolve/worker/sandbox.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/audit.h>
#include <linux/falloc.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>
#include <system_error>
#include <utility>
#include <vector>

#include "evolve/program/protocol.hpp"
#include "evolve/worker/process.hpp"

namespace attune::evolve {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#endif

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;
constexpr uint32_t kKill = SECCOMP_RET_KILL_PROCESS;

// What arithmetic, memory, the C library and the pool of threads need.
constexpr int kAllowed[] = {
    SYS_read,
    SYS_pread64,
    SYS_lseek,
    SYS_fstat,
    SYS_newfstatat,
    SYS_close,
    SYS_mmap,
    SYS_mprotect,
    SYS_munmap,
    SYS_mremap,
    SYS_brk,
    SYS_futex,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_getrandom,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_set_robust_list,
    SYS_membarrier,
    SYS_restart_syscall,
    SYS_uname,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_seccomp,  // a filter can only be made narrower
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef SYS_time
    SYS_time,
#endif
};

// Nobody makes these by accident: the candidate ends there.
constexpr int kDeadly[] = {
    SYS_clone,
    SYS_execve,
    SYS_execveat,
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kill,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_unshare,
    SYS_setns,
    SYS_mount,
    SYS_bpf,
    SYS_perf_event_open,
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
#ifdef SYS_clone3
    SYS_clone3,
#endif
#ifdef SYS_pidfd_open
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
#endif
#ifdef SYS_pidfd_getfd
    SYS_pidfd_getfd,
#endif
#ifdef SYS_io_uring_setup
    SYS_io_uring_setup,
#endif
};

// A filter in the kernel's language: loads one field at a time, compares, returns.
class Filter {
 public:
  explicit Filter(uint32_t wrong_arch) {
    load(offsetof(seccomp_data, arch));
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0));
    give(wrong_arch);
    load(offsetof(seccomp_data, nr));
#ifdef __x86_64__  // the calls of the x32 ABI have a bit of their own
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1));
    give(wrong_arch);
#endif
  }

  void when(int number, uint32_t verdict) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 1));
    give(verdict);
  }

  // Allowed when the argument's lower half is one of `values`, deadly when it is one of `deadly`.
  void when_argument(int number, int argument, std::initializer_list<uint32_t> values,
                     uint32_t otherwise, std::initializer_list<uint32_t> deadly = {}) {
    const size_t n = values.size() + deadly.size();
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, uint8_t(2 * n + 2)));
    load_argument(argument);
    for (const auto& [list, verdict] : {std::pair{values, kAllow}, {deadly, kKill}})
      for (uint32_t value : list) {
        code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
        give(verdict);
      }
    give(otherwise);
  }

  // Allowed when none of these bits is set.
  void when_none(int number, int argument, uint32_t bits, uint32_t otherwise) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 4));
    load_argument(argument);
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0));
    give(kAllow);
    give(otherwise);
  }

  // Allowed when some of these bits is set.
  void when_some(int number, int argument, uint32_t bits, uint32_t otherwise) {
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 4));
    load_argument(argument);
    code_.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1));
    give(kAllow);
    give(otherwise);
  }

  void give(uint32_t verdict) { code_.push_back(BPF_STMT(BPF_RET | BPF_K, verdict)); }

  // For every thread of the process, which must have promised to take no new privileges. Returns
  // errno.
  int install() {
    sock_fprog program{};
    program.len = static_cast<unsigned short>(code_.size());
    program.filter = code_.data();
    // Without SPEC_ALLOW older kernels slow the processor down for what is filtered, and the
    // measurements with it.
    constexpr unsigned kTsync = SECCOMP_FILTER_FLAG_TSYNC;
    for (unsigned flags : {kTsync | unsigned(SECCOMP_FILTER_FLAG_SPEC_ALLOW), kTsync}) {
      const long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
      if (result == 0) return 0;
      if (result > 0) return EBUSY;  // a thread that cannot follow
      if (errno != EINVAL) return errno;
    }
    return EINVAL;
  }

 private:
  void load(size_t offset) {
    code_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, uint32_t(offset)));
  }
  // Little-endian: the lower half comes first. What is compared here has 32 bits.
  void load_argument(int n) { load(offsetof(seccomp_data, args) + 8 * size_t(n)); }

  std::vector<sock_filter> code_;
};

constexpr uint32_t kNotReading = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND | 020000000;

int enter_filter(Filter* filter) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
  return filter->install();
}

Filter candidate_filter() {
  Filter f(kKill);
  for (int number : kAllowed) f.when(number, kAllow);
  for (int number : kDeadly) f.when(number, kKill);
  f.when_argument(SYS_write, 0, {1, 2, program::kReplyFd}, kRefuse);
  f.when_argument(SYS_writev, 0, {1, 2}, kRefuse);
  f.when_argument(SYS_tgkill, 0, {uint32_t(getpid())}, kKill);  // raise, abort
  // What an allocator needs. Other advice reaches pages of the arena that all workers share.
  f.when_argument(SYS_madvise, 2,
                  {MADV_NORMAL, MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE}, kRefuse,
                  {MADV_REMOVE});
  f.when_none(SYS_openat, 2, kNotReading, kRefuse);
#ifdef SYS_open
  f.when_none(SYS_open, 1, kNotReading, kRefuse);
#endif
  f.give(kRefuse);
  return f;
}

// A CUDA driver needs files, ioctl and threads of its own; no process, no other process's memory,
// no network but local sockets, through which it reaches what listens on them (docs/security.md).
Filter device_filter() {
  Filter f(kKill);
  f.when_some(SYS_clone, 0, CLONE_THREAD, kKill);
#ifdef SYS_clone3
  f.when(SYS_clone3,
         SECCOMP_RET_ERRNO | ENOSYS);  // its flags lie in memory; the C library takes clone
#endif
  f.when_argument(SYS_tgkill, 0, {uint32_t(getpid())}, kKill);
  for (int number : kDeadly)
    if (number != SYS_clone && number != SYS_socket && number != SYS_socketpair &&
        number != SYS_connect && number != SYS_bind)
      f.when(number, kKill);
  f.when_argument(SYS_socket, 0, {AF_UNIX, AF_NETLINK}, kRefuse);  // the driver's own
  // Nothing takes pages from memory that others share.
  f.when_argument(SYS_madvise, 2, {}, kAllow, {MADV_REMOVE, MADV_PAGEOUT, MADV_HWPOISON});
  f.when_none(SYS_fallocate, 1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE, kRefuse);
  for (int number : {SYS_setsid, SYS_setpgid, SYS_unlinkat, SYS_renameat2, SYS_mkdirat})
    f.when(number, kRefuse);
#ifdef SYS_unlink
  for (int number : {SYS_unlink, SYS_rename, SYS_mkdir, SYS_rmdir}) f.when(number, kRefuse);
#endif
  f.give(kAllow);
  return f;
}

bool has_seccomp() {
  const uint32_t action = kKill;
  return !kSanitizer && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 &&
         syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

// A network's namespace takes 4 ms: it is for systems where no filter forbids sockets.
int new_namespaces() {
  const int others = has_seccomp() ? 0 : CLONE_NEWNET | CLONE_NEWIPC;
  return unshare(CLONE_NEWUSER | others) == 0 ? 0 : errno;
}

// What `attempt` returns in a process of its own, whose limits and rights are then lost.
template <class Attempt>
int tried(const Attempt& attempt) {
  const pid_t child = fork();
  if (child < 0) return errno;
  if (child == 0) _exit(attempt());
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return errno;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
}

std::string text_of(int error) { return std::generic_category().message(error); }

SandboxReport probe() {
  SandboxReport report;
  report.landlock = landlock_abi();
  if (kSanitizer) {
    report.why_not = "a sanitizer's runtime is in this program, which needs what they forbid";
    return report;
  }
  Filter filter = candidate_filter();  // before the fork: it allocates
  const int seccomp = tried([&] { return enter_filter(&filter); });
  const int namespaces = tried([] { return new_namespaces(); });
  report.seccomp = seccomp == 0;
  report.namespaces = namespaces == 0;
  if (seccomp != 0) report.why_not = fmt::format("seccomp: {}", text_of(seccomp));
  if (namespaces != 0)
    report.why_not +=
        fmt::format("{}user namespaces: {}", seccomp != 0 ? "; " : "", text_of(namespaces));
  return report;
}

void limit(__rlimit_resource_t resource, rlim_t value) {
  const rlimit both{value, value};
  setrlimit(resource, &both);
}

}  // namespace

SandboxReport sandbox_report() {
  static const SandboxReport report = probe();
  return report;
}

std::string sandbox_gaps(const SandboxReport& report) {
  std::string gaps = report.why_not;
  const auto add = [&](const char* gap) { gaps += (gaps.empty() ? "" : "; ") + std::string(gap); };
  if (report.landlock == 0)
    add("Landlock: not in this kernel; which files a program has its compiler read is checked in "
        "its text only");
  else if (report.landlock < 4)
    add("Landlock: before version 4; compilers have the network");
  return gaps;
}

Status enter_namespaces() {
  const int error = kSanitizer ? ENOTSUP : new_namespaces();
  if (error == 0) return {};
  return Status::unsupported(fmt::format("no user namespace: {}", text_of(error)));
}

Status enter_sandbox() {
  if (kSanitizer) return Status::unsupported("no seccomp: a sanitizer's runtime is in the way");
  limit(RLIMIT_NPROC, 0);  // no more than there are; the filter kills those who try
  limit(RLIMIT_NOFILE, 64);
  Filter filter = candidate_filter();
  const int error = enter_filter(&filter);
  if (error == 0) return {};
  return Status::unsupported(fmt::format("no seccomp: {}", text_of(error)));
}

Status enter_device_sandbox() {
  if (kSanitizer) return Status::unsupported("no seccomp: a sanitizer's runtime is in the way");
  limit(RLIMIT_FSIZE, 0);
  Filter filter = device_filter();
  const int error = enter_filter(&filter);
  if (error == 0) return {};
  return Status::unsupported(fmt::format("no seccomp: {}", text_of(error)));
}

Status forbid_files() {
  if (kSanitizer) return Status::unsupported("no seccomp: a sanitizer's runtime is in the way");
  Filter f(kKill);
  f.when(SYS_openat, kRefuse);
#ifdef SYS_open
  f.when(SYS_open, kRefuse);
#endif
  f.give(kAllow);
  const int error = f.install();
  if (error == 0) return {};
  return Status::unsupported(fmt::format("no seccomp: {}", text_of(error)));
}

Status forbid_code() {
  if (kSanitizer) return Status::unsupported("no seccomp: a sanitizer's runtime is in the way");
  Filter f(kKill);
  f.when_none(SYS_mmap, 2, PROT_EXEC, kRefuse);
  f.when_none(SYS_mprotect, 2, PROT_EXEC, kRefuse);
  f.give(kAllow);
  const int error = f.install();
  if (error == 0) return {};
  return Status::unsupported(fmt::format("no seccomp: {}", text_of(error)));
}

}  // namespace attune::evolve
