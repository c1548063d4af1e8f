// Starting another program with nothing of ours in its hands, and the end of it.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evolve/worker/landlock.hpp"
#include "src/status.hpp"

namespace attune::evolve {

double monotonic_seconds();

// "what: " and what errno says.
Status system_error(const std::string& what, int error);

// A descriptor that is closed with its owner.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_;
};

// Both ends close at an exec.
Status make_pipe(Fd* read, Fd* write);

struct Spawn {
  std::string program;  // a path
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // all of it: "NAME=value"
  std::string folder;                    // to work in; empty: ours
  std::vector<int> descriptors;  // what becomes 0, 1, 2, ...; -1: /dev/null. Every other is closed
  std::vector<std::pair<int, rlim_t>> limits;  // RLIMIT_*, soft and hard
  bool starts_others = false;                  // a compiler: what it starts has to die with us too
  // The files that it and what it starts can open, where the kernel has Landlock; its own among
  // them. None: those that we can open.
  std::optional<FileAccess> files = {};
};

// A process group of its own, which dies with the thread that started it. Not ok when the program
// could not be started.
Status spawn(const Spawn& what, pid_t* pid);

// Whether it has ended, waiting for it until `deadline` (of monotonic_seconds). Its status stays.
bool ended_by(pid_t pid, double deadline);

// Kills what is left of the group and takes the leader's status, as waitpid gives it; -1 when
// somebody else took it.
int kill_group(pid_t pid);

std::string signal_name(int signal);  // "SIGSEGV"

// NAME=value of this process's environment, when it is set.
void inherit(const char* name, std::vector<std::string>* environment);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitizer = true;  // its runtime cannot live with every limit
#else
inline constexpr bool kSanitizer = false;
#endif

}  // namespace attune::evolve
