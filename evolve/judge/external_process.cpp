#include "evolve/judge/external_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "evolve/worker/process.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kMostHead = 256 << 10, kMostTail = 256 << 10;  // bytes of output that are kept
constexpr size_t kMostResult = 16 << 20;
constexpr int kPollMilliseconds = 10;
constexpr double kLastWords = 0.2;  // seconds for output that is on its way when a process ended

class Stream {
 public:
  explicit Stream(Fd fd) : fd_(std::move(fd)) { fcntl(fd_.get(), F_SETFL, O_NONBLOCK); }

  int fd() const { return fd_.get(); }

  // What is there now. False at its end.
  bool read_some() {
    char buffer[1 << 14];
    for (int n = 0; n < 64; ++n) {  // and then the clock is looked at
      const ssize_t got = read(fd_.get(), buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN;
      if (got == 0) {
        fd_.reset();
        return false;
      }
      add({buffer, size_t(got)});
    }
    return true;
  }

  std::string text() const {
    if (left_out_ == 0) return head_ + tail_;
    return fmt::format("{}\n... {} bytes left out ...\n{}", head_, left_out_, tail_);
  }

 private:
  void add(std::string_view more) {
    const size_t first = std::min(more.size(), kMostHead - head_.size());
    head_ += more.substr(0, first);
    tail_ += more.substr(first);
    if (tail_.size() <= kMostTail) return;
    left_out_ += tail_.size() - kMostTail;
    tail_.erase(0, tail_.size() - kMostTail);
  }

  Fd fd_;
  std::string head_, tail_;
  size_t left_out_ = 0;
};

std::set<pid_t> children() {
  std::set<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc() || *end != '\0') continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t close = text.rfind(')');  // "pid (name) state parent": a name may have spaces
    if (close == std::string::npos || close + 4 >= text.size()) continue;
    if (std::atoi(text.c_str() + close + 4) == getpid()) found.insert(pid);
  }
  return found;
}

// As long as it lives, processes that lose their parent become children of this one.
class Adopts {
 public:
  Adopts() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Adopts() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Adopts(const Adopts&) = delete;
  Adopts& operator=(const Adopts&) = delete;

 private:
  int before_ = 0;
};

// Processes that left the group become ours when their parents end, and are ended then. Each round
// may bring those that the ones before had started.
void end_descendants(const std::set<pid_t>& before) {
  for (int round = 0; round < 100; ++round) {
    bool any = false;
    for (const pid_t pid : children()) {
      if (before.contains(pid)) continue;
      any = true;
      kill(pid, SIGKILL);
      while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    if (!any) return;
  }
}

std::vector<std::string> whole_environment() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    all.emplace_back(*entry);
  return all;
}

// A file without a name: who writes it cannot block, and nobody else finds it.
Status make_result(Fd* file) {
  file->reset(memfd_create("attune-result", MFD_CLOEXEC));
  if (file->get() < 0) return system_error("cannot make a file in memory", errno);
  return {};
}

std::string contents_of(const Fd& file) {
  std::string text(kMostResult, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = pread(file.get(), text.data() + size, text.size() - size, off_t(size));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += size_t(got);
  }
  text.resize(size);
  return text;
}

}  // namespace

Status run_and_capture(const std::string& program, const std::vector<std::string>& arguments,
                       double limit, const std::function<bool()>& stop, Captured* captured) {
  const Adopts adopts;
  const std::set<pid_t> before = children();
  Fd out_read, out_write, err_read, err_write, result;
  ATTUNE_TRY(make_pipe(&out_read, &out_write));
  ATTUNE_TRY(make_pipe(&err_read, &err_write));
  ATTUNE_TRY(make_result(&result));
  Spawn what;
  what.program = program;
  what.arguments = arguments;
  what.environment = whole_environment();
  what.descriptors = {-1, out_write.get(), err_write.get(), result.get()};
  what.starts_others = true;
  const double begin = monotonic_seconds();
  pid_t pid = -1;
  ATTUNE_TRY(spawn(what, &pid));
  out_write.reset();
  err_write.reset();
  Stream out(std::move(out_read)), err(std::move(err_read));
  const auto read_both = [&](int milliseconds) {
    pollfd ends[] = {{out.fd(), POLLIN, 0}, {err.fd(), POLLIN, 0}};  // -1: poll leaves it out
    if (poll(ends, 2, milliseconds) <= 0) return false;
    for (int n = 0; n < 2; ++n)
      if (ends[n].revents != 0) (void)(n == 0 ? out : err).read_some();
    return true;
  };
  while (!ended_by(pid, 0)) {
    if (stop && stop()) {
      captured->stopped = true;
      break;
    }
    if (monotonic_seconds() - begin > limit) {
      captured->late = true;
      break;
    }
    read_both(kPollMilliseconds);
  }
  captured->seconds = monotonic_seconds() - begin;
  captured->status = kill_group(pid);
  end_descendants(before);
  const double end = monotonic_seconds() + kLastWords;
  while ((out.fd() >= 0 || err.fd() >= 0) && monotonic_seconds() < end)
    if (!read_both(1)) break;
  captured->out = out.text();
  captured->err = err.text();
  captured->result = contents_of(result);
  return {};
}

}  // namespace attune::evolve
