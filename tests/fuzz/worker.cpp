#include "tests/fuzz/worker.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace attune::fuzz {
namespace {

constexpr double kWatchdogSeconds = 20;  // a case takes milliseconds
constexpr int kSharedFd = 3;             // of a worker; requests come on 0, replies go to 1

void* map_outcome(int fd) {
  return mmap(nullptr, sizeof(Outcome), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

bool read_whole(int fd, void* to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = read(fd, static_cast<char*>(to) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += size_t(n);
  }
  return true;
}

bool write_whole(int fd, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = write(fd, static_cast<const char*>(from) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += size_t(n);
  }
  return true;
}

}  // namespace

int run_worker(const std::string& name, const std::string& folder) {
  void* memory = map_outcome(kSharedFd);
  if (memory == MAP_FAILED) return 1;
  Outcome* outcome = static_cast<Outcome*>(memory);
  for (const TargetInfo& info : targets()) {
    if (name != info.name) continue;
    const std::unique_ptr<Target> target = info.make(folder);
    uint64_t seed = 0;
    while (read_whole(STDIN_FILENO, &seed, sizeof(seed))) {
      target->run(seed, outcome);
      if (!write_whole(STDOUT_FILENO, "+", 1)) break;
    }
    return 0;
  }
  return 1;
}

Worker::Worker(const TargetInfo& target, std::string isa, std::string folder)
    : target_(target), isa_(std::move(isa)), folder_(std::move(folder)) {
  memory_.reset(memfd_create("attune-fuzz", MFD_CLOEXEC));
  if (memory_.get() < 0 || ftruncate(memory_.get(), sizeof(Outcome)) != 0)
    throw std::runtime_error("no memory to share with a worker");
  void* memory = map_outcome(memory_.get());
  if (memory == MAP_FAILED) throw std::runtime_error("no memory to share with a worker");
  outcome_ = static_cast<Outcome*>(memory);
}

Worker::~Worker() {
  if (pid_ > 0) evolve::kill_group(pid_);
  munmap(outcome_, sizeof(Outcome));
}

std::string Worker::start() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
  if (mkdir(folder_.c_str(), 0700) != 0) return fmt::format("cannot make {}", folder_);
  evolve::Fd request_read, reply_write;
  for (const Status& s :
       {evolve::make_pipe(&request_read, &requests_), evolve::make_pipe(&replies_, &reply_write)})
    if (!s.ok()) return s.message;
  evolve::Spawn what;
  what.program = "/proc/self/exe";
  what.arguments = {"--worker", target_.name, folder_};
  what.environment = {"ATTUNE_CACHE_DIR=" + folder_};
  if (!isa_.empty()) what.environment.push_back("ATTUNE_ISA=" + isa_);
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS"})
    evolve::inherit(name, &what.environment);
  what.descriptors = {request_read.get(), reply_write.get(), STDERR_FILENO, memory_.get()};
  if (!evolve::kSanitizer) what.limits = {{RLIMIT_AS, target_.memory_bytes}};
  what.limits.emplace_back(RLIMIT_CORE, 0);
  const Status started = evolve::spawn(what, &pid_);
  return started.ok() ? "" : started.message;
}

// Takes what is left of the worker away, and says how it ended.
std::string Worker::end_of_worker() {
  const bool ended = evolve::ended_by(pid_, 0);
  const int status = evolve::kill_group(pid_);
  pid_ = -1;
  const std::string where =
      outcome_->doing[0] == '\0' ? "" : fmt::format(" in {}", outcome_->doing);
  if (!ended) return fmt::format("no answer after {} s{}", kWatchdogSeconds, where);
  if (WIFSIGNALED(status))
    return fmt::format("crashed{}: {}", where, evolve::signal_name(WTERMSIG(status)));
  return fmt::format("the process ended{}, exit status {}", where, WEXITSTATUS(status));
}

bool Worker::run(uint64_t seed, const std::atomic<bool>& stop) {
  clear();
  if (pid_ < 0) {
    if (const std::string why = start(); !why.empty()) {
      outcome_->fail("no worker: " + why);
      return true;
    }
  }
  const bool asked = write_whole(requests_.get(), &seed, sizeof(seed));
  const double deadline = evolve::monotonic_seconds() + kWatchdogSeconds;
  pollfd reply{replies_.get(), POLLIN, 0};
  while (asked && poll(&reply, 1, 100) <= 0) {
    if (stop) {
      evolve::kill_group(pid_);
      pid_ = -1;
      return false;
    }
    if (evolve::monotonic_seconds() < deadline) continue;
    outcome_->fail(end_of_worker());
    return true;
  }
  char done = 0;
  if (!asked || !read_whole(replies_.get(), &done, 1)) {
    evolve::ended_by(pid_, deadline);  // the pipe closes a moment before the process has ended
    outcome_->fail(end_of_worker());
  }
  return true;
}

}  // namespace attune::fuzz
