#include "evolve/worker/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

// What the child of a fork needs, made before: there it may not allocate.
struct Prepared {
  const Spawn& what;
  std::vector<char*> argv, envp;
  std::vector<int> high;  // the descriptors, out of the way of the numbers they will have
  int report;             // where an error goes; closes at the exec
  int ruleset;            // of Landlock, so too; -1: none
  pid_t parent;
};

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (const std::string& s : strings) list.push_back(const_cast<char*>(s.c_str()));
  list.push_back(nullptr);
  return list;
}

void close_from(int first) {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, unsigned(first), ~0u, 0u) == 0) return;
#endif
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int end = int(std::min<rlim_t>(limit.rlim_cur, 1 << 16));
  for (int fd = first; fd < end; ++fd) close(fd);
}

void write_file(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd >= 0 && write(fd, text, strlen(text)) >= 0) close(fd);
}

void kill_own_group(int) { kill(-getpid(), SIGKILL); }

// The kernel tells one process of its parent's death, and none of those that it started. So the
// child stays as the leader of the group and takes all of it along; the program is a child of its
// own. Returns there, with 0, or errno.
int leave_a_guardian(pid_t parent) {
  signal(SIGTERM, kill_own_group);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) return ESRCH;
  const pid_t program = fork();
  if (program < 0) return errno;
  if (program == 0) {
    signal(SIGTERM, SIG_DFL);
    return 0;
  }
  close_from(0);
  int status = 0;
  while (waitpid(program, &status, 0) < 0 && errno == EINTR) {
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

// In the child; returns errno. Only what is allowed after a fork of many threads.
int become(const Prepared& p) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != p.parent) return ESRCH;         // it died before the line above
  write_file("/proc/self/oom_score_adj", "1000");  // when memory ends, this one goes first
  for (int s = 1; s < NSIG; ++s) signal(s, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  const int count = int(p.high.size());
  for (int fd = 0; fd < count; ++fd)
    if (dup2(p.high[size_t(fd)], fd) < 0) return errno;
  if (dup2(p.report, count) < 0) return errno;
  fcntl(count, F_SETFD, FD_CLOEXEC);
  const int ruleset = p.ruleset < 0 ? -1 : dup2(p.ruleset, count + 1);
  if (p.ruleset >= 0 && ruleset < 0) return errno;
  if (ruleset >= 0) fcntl(ruleset, F_SETFD, FD_CLOEXEC);
  close_from(count + (ruleset < 0 ? 1 : 2));
  if (p.what.starts_others)
    if (const int error = leave_a_guardian(p.parent); error != 0) return error;
  if (!p.what.folder.empty() && chdir(p.what.folder.c_str()) != 0) return errno;
  for (const auto& [resource, value] : p.what.limits) {
    rlimit limit{};
    if (getrlimit(__rlimit_resource_t(resource), &limit) != 0) return errno;
    limit.rlim_cur = limit.rlim_max = std::min(limit.rlim_max, value);
    if (setrlimit(__rlimit_resource_t(resource), &limit) != 0) return errno;
  }
  if (ruleset >= 0)
    if (const int error = enter_ruleset(ruleset); error != 0) return error;
  execve(p.what.program.c_str(), p.argv.data(), p.envp.data());
  return errno;
}

}  // namespace

Status system_error(const std::string& what, int error) {
  return {ATTUNE_INTERNAL, fmt::format("{}: {}", what, std::generic_category().message(error))};
}

double monotonic_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

void Fd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Status make_pipe(Fd* read, Fd* write) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot make a pipe", errno);
  read->reset(ends[0]);
  write->reset(ends[1]);
  return {};
}

Status spawn(const Spawn& what, pid_t* pid) {
  Fd report_read, report_write;
  ATTUNE_TRY(make_pipe(&report_read, &report_write));
  const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  Fd ruleset;
  if (what.files && landlock_abi() > 0) ATTUNE_TRY(make_ruleset(*what.files, &ruleset));
  std::vector<Fd> owned;
  const int free_from = int(what.descriptors.size()) + 2;
  const auto raise = [&](int fd) {
    owned.emplace_back(fcntl(fd < 0 ? null.get() : fd, F_DUPFD_CLOEXEC, free_from));
    return owned.back().get();
  };
  std::vector<std::string> arguments = what.arguments;
  arguments.insert(arguments.begin(), what.program);
  Prepared p{what, pointers(arguments), pointers(what.environment), {}, -1, -1, getpid()};
  for (int fd : what.descriptors) p.high.push_back(raise(fd));
  p.report = raise(report_write.get());
  if (ruleset.get() >= 0) p.ruleset = raise(ruleset.get());
  for (const Fd& fd : owned)
    if (fd.get() < 0) return system_error("cannot copy a descriptor", errno);

  const pid_t child = fork();
  if (child < 0) return system_error("cannot start a process", errno);
  if (child == 0) {
    const int error = become(p);
    // A failed write leaves the parent with the exit code alone.
    const ssize_t written = write(int(p.high.size()), &error, sizeof(error));
    _exit(written == sizeof(error) ? 126 : 127);
  }
  owned.clear();
  report_write.reset();
  int error = 0;
  ssize_t n;
  while ((n = read(report_read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (n == 0) {  // closed by the exec
    *pid = child;
    return {};
  }
  kill_group(child);
  return system_error(fmt::format("cannot start {}", what.program), n > 0 ? error : EIO);
}

int kill_group(pid_t pid) {
  kill(-pid, SIGKILL);
  kill(pid, SIGKILL);  // it may not have made its group yet
  int status = 0;
  pid_t got;
  while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  return got == pid ? status : -1;
}

bool ended_by(pid_t pid, double deadline) {
  for (;;) {
    siginfo_t info{};
    const int result = waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (result == 0 ? info.si_pid == pid : errno != EINTR) return true;
    if (monotonic_seconds() >= deadline) return false;
    const timespec pause{0, 500'000};
    nanosleep(&pause, nullptr);
  }
}

std::string signal_name(int signal) {
  static constexpr std::pair<int, const char*> kNames[] = {
      {SIGABRT, "SIGABRT"}, {SIGALRM, "SIGALRM"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
      {SIGHUP, "SIGHUP"},   {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"},   {SIGKILL, "SIGKILL"},
      {SIGPIPE, "SIGPIPE"}, {SIGQUIT, "SIGQUIT"}, {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"},
      {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"},
  };
  for (const auto& [number, name] : kNames)
    if (number == signal) return name;
  return fmt::format("signal {}", signal);
}

void inherit(const char* name, std::vector<std::string>* environment) {
  if (const char* value = std::getenv(name); value != nullptr)
    environment->push_back(fmt::format("{}={}", name, value));
}

}  // namespace attune::evolve
