// A candidate's own process. The parent shares one arena of memory with it and speaks lines of JSON
// over a pair of pipes; it owns the clock, the inputs and the verdict. The child is killed when it
// is slow, and its end, however it comes, is a value.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/params.h"
#include "src/status.hpp"

namespace attune::evolve {

// Shared memory, by offsets: parent and child see it at different addresses.
class Arena {
 public:
  static Status create(int64_t bytes, std::unique_ptr<Arena>* arena);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  int64_t size() const { return size_; }
  int fd() const { return fd_; }

  // The next free bytes, aligned to 64 plus `misaligned`; -1 when the arena is full. reset() frees
  // all.
  int64_t take(int64_t bytes, int64_t misaligned = 0);
  void reset() { used_ = 0; }
  // What was taken after a mark can be given back.
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }

 private:
  Arena() = default;
  std::byte* base_ = nullptr;
  int64_t size_ = 0, used_ = 0;
  int fd_ = -1;
};

// One call as it lies in the arena. Its pointers are offsets into the arena plus one; 0 is null.
struct ArenaCall {
  Problem problem;
  Params params;
};
template <class T>
T* as_offset(int64_t offset) {
  return reinterpret_cast<T*>(offset + 1);
}

// A part of the arena.
struct Range {
  int64_t at, bytes;
};

struct WorkerOptions {
  std::string tool;   // the program; its `worker` command is the child
  bool cuda = false;  // calls run on the CUDA device that the environment shows first
  std::vector<std::string> environment = {};  // more than the least: "NAME=value"
  int threads = 1;
  int64_t memory_bytes = int64_t{4} << 30;
  std::function<bool()> stop = {};  // asked while a reply is waited for: Ctrl-C
  bool sandbox = true;  // namespaces and seccomp where the system has them; rlimits always
};

struct Reply {
  enum class Kind {
    ok,
    refused,  // the candidate returned an error; text says which
    crashed,  // a signal; text names it
    exited,   // by itself, in the middle
    timeout,  // killed at its limit
    garbage   // what came back is not a reply
  } kind = Kind::ok;
  std::string text;
  double seconds = 0;  // the parent's clock, from the request (of a run: to begin) to the reply

  bool ok() const { return kind == Kind::ok; }
};

// The child dies with the thread that started it: keep that one for as long as its workers.
class Worker {
 public:
  static Status start(const WorkerOptions& options, const Arena& arena,
                      std::unique_ptr<Worker>* worker);
  ~Worker();  // kills the whole process group
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // A typed candidate by its printed form, the same with its compiled register tile, or a compiled
  // program. Once in a worker's life.
  Reply load_config(const std::string& config, double limit_seconds);
  Reply load_tile(const std::string& config, const std::string& library, double limit_seconds);
  Reply load_library(const std::string& path, double limit_seconds);

  // Compiles the kernels of a CUDA config for these calls into the cache, and loads nothing. The
  // reply's text is their hash.
  Reply compile(const std::string& config, std::span<const int64_t> calls, double limit_seconds);

  // The calls at these offsets, one after another. The reply comes when all are done: on a CUDA
  // device, all that was begun there, or only what was put into the stream that it was given.
  enum class Wait { device, stream };
  Reply run(std::span<const int64_t> calls, double limit_seconds, Wait wait = Wait::device);

  // A CUDA device has an arena of its own at the same offsets. Poison is 0xff in every byte.
  Reply upload(std::span<const Range> ranges, double limit_seconds);
  Reply fetch(std::span<const Range> ranges, double limit_seconds);
  Reply poison(std::span<const Range> ranges, double limit_seconds);
  // Waits for all that the candidate began on the device.
  Reply synchronize(double limit_seconds);
  // Bytes of the second-level cache that the candidate set aside for itself, as the reply's text.
  Reply reserved_cache(double limit_seconds);

  // Its process group, threads of its own included, does nothing while another is timed.
  void suspend();
  void resume();

  // Processor time of the child so far, and its threads: nothing may go on after a reply.
  double cpu_seconds() const;
  int thread_count() const;

  pid_t pid() const { return pid_; }
  bool alive() const { return pid_ > 0; }

 private:
  Worker() = default;
  Reply load(const std::string& config, const std::string& library, double limit_seconds);
  Reply move(const char* what, std::span<const Range> ranges, double limit_seconds);
  Reply request(std::string body, double limit_seconds);
  bool send(std::string_view line, double deadline);
  Reply receive(const std::string& nonce, double deadline, double limit_seconds);
  Reply parse(std::string_view line, const std::string& nonce);
  int finish();
  Reply ended(double deadline);
  Reply stopped(Reply::Kind kind, std::string text);

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  int threads_ = 1;
  bool sandbox_ = true;
  std::function<bool()> stop_;
  std::string received_;
};

// The child's side: `attune worker`, with requests on descriptor 0 and these two. Returns only when
// they are not there; else the process ends here, without what a candidate left for its exit.
inline constexpr int kArenaFd = 3, kReplyFd = 4;
int worker_main(int threads, bool cuda);

// What this system offers to hold a candidate: for `attune info` and for reports.
struct SandboxReport {
  bool seccomp = false, namespaces = false;
  std::string why_not;
};
SandboxReport sandbox_report();
// In the child, in this order; each is "unsupported", with the reason, where the system lacks it.
// While there is one thread only: no look into other processes.
Status enter_namespaces();
// Before the candidate is loaded: no new processes or threads, no files but for reading, no
// sockets. Threads of the pool exist already.
Status enter_sandbox();
// The same where a CUDA driver has been opened, which needs more: no processes, no writing to
// files, no other process's memory.
Status enter_device_sandbox();
// When it is loaded: no files at all.
Status forbid_files();

}  // namespace attune::evolve
