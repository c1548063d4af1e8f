// A candidate's own process. The parent shares one arena of memory with it and sends requests; it
// owns the clock, the inputs and the verdict. The child is killed when it is slow, and its end,
// however it comes, is a value.
//
// Configs of the library's kernels, and CUDA programs, run in `attune worker`, which speaks lines
// of JSON. A program on the CPU runs in a small executable without the library (program/), which
// stands still but for the time between a request and its reply.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/program/protocol.hpp"
#include "evolve/worker/arena.hpp"
#include "src/status.hpp"

namespace attune::evolve {

struct WorkerOptions {
  std::string tool;  // its `worker` command is the child
  std::string program =
      {};             // the shared object of a program on the CPU: the child is its own worker
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
  std::string text;    // of a program's process never its own: a saying of ours, or a number
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

  // A typed candidate by its printed form, the same with its compiled register tile, or the program
  // of WorkerOptions. Once in a worker's life.
  Reply load_config(const std::string& config, double limit_seconds);
  Reply load_tile(const std::string& config, const std::string& library, double limit_seconds);
  Reply load_program(double limit_seconds);

  // On a CUDA device: a typed candidate, or none for a keeper; `kernels` is the file that
  // compile_compare_kernels() filled. A keeper runs no candidate. It owns the memory of a program,
  // and looks at what the program left there. Or a compiled program, which works in the memory of
  // a keeper: its name is the text of share(). What share() is given are inputs: the keeper has a
  // copy of them of its own.
  Reply load_on_device(const std::string& config, const std::string& kernels, double limit_seconds);
  Reply share(std::span<const Range> inputs, double limit_seconds);
  Reply load_library(const std::string& path, const std::string& memory, double limit_seconds);

  // Compiles the kernels of a CUDA config for these calls into the cache, and loads nothing. The
  // reply's text is their hash.
  Reply compile(const std::string& config, std::span<const int64_t> calls, double limit_seconds);

  // The calls at these offsets, one after another. The reply comes when all are done: on a CUDA
  // device, all that was begun there, or only what was put into the stream that it was given.
  enum class Wait { device, stream };
  Reply run(std::span<const int64_t> calls, double limit_seconds, Wait wait = Wait::device);
  // The same of a program on the CPU. It is told of a call when the one before was answered;
  // `done` is called with the number of each that was. kNoCall is a call without work.
  Reply run_each(std::span<const int64_t> calls, double limit_seconds,
                 const std::function<void(size_t)>& done = {});
  // The same in one request: nothing is known of the calls before the clock runs.
  Reply run_at_once(std::span<const int64_t> calls, double limit_seconds, Wait wait = Wait::device);

  // A CUDA device has an arena of its own at the same offsets. Poison is 0xff in every byte.
  Reply upload(std::span<const Range> ranges, double limit_seconds);
  Reply fetch(std::span<const Range> ranges, double limit_seconds);
  Reply poison(std::span<const Range> ranges, double limit_seconds);
  // Of a contiguous call each, the row that lies farthest from what the library's own kernel
  // computes, as numbers in the reply's text.
  Reply worst_rows(std::span<const int64_t> calls, double limit_seconds);
  // Of a keeper: "same" or "changed", what share() was given.
  Reply shared_inputs(double limit_seconds);
  // Waits for all that the candidate began on the device.
  Reply synchronize(double limit_seconds);
  // Bytes of the second-level cache that the candidate set aside for itself, as the reply's text:
  // digits, or nothing when it said something else.
  Reply reserved_cache(double limit_seconds);

  // Its process group, threads of its own included, does nothing while another is timed. The worker
  // of a program on the CPU is suspended by itself after each reply.
  void suspend();
  void resume();

  // Processor time of the child so far, and its threads: nothing may go on after a reply.
  double cpu_seconds() const;
  int thread_count() const;
  bool ready_to_run() const;  // whether one of its threads runs, or would if it had a processor

  pid_t pid() const { return pid_; }
  bool alive() const { return pid_ > 0; }

 private:
  // What came back so far: a whole reply, a part of one, or neither.
  using Parse = std::function<std::optional<Reply>(std::string_view)>;

  Worker() = default;
  Reply load(const std::string& config, const std::string& library, double limit_seconds,
             const std::string& kernels = "", const std::string& memory = "");
  Reply move(const char* what, std::span<const Range> ranges, double limit_seconds);
  Reply request(const std::string& body, double limit_seconds);
  Reply ask(program::Ask what, std::span<const int64_t> numbers, double limit_seconds);
  Reply exchange(std::string_view request, const Parse& parse, double limit_seconds);
  // What `talk(deadline)` has as its last reply, by the clock, within the limit.
  Reply timed(double limit_seconds, const std::function<Reply(double deadline)>& talk);
  Reply send_and_receive(std::string_view request, const Parse& parse, double deadline,
                         double limit_seconds);
  bool send(std::string_view bytes, double deadline);
  Reply receive(const Parse& parse, double deadline, double limit_seconds);
  int finish();
  Reply ended(double deadline);
  Reply stopped(Reply::Kind kind, std::string text);

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  int threads_ = 1;
  bool sandbox_ = true, program_ = false, suspended_ = false;
  bool stranger_ = false;  // speaks JSON, and has a program: none of its words are passed on
  std::function<bool()> stop_;
  std::vector<int64_t> setup_;  // what a program's worker is told of the arena
  std::string guards_;          // the same for the other kind
};

// The child's side: `attune worker`, with requests on descriptor 0 and these. Returns only when
// they are not there; else the process ends here, without what a candidate left for its exit.
using program::kReadFd, program::kReplyFd, program::kWrittenFd;
int worker_main(int threads, bool cuda);

}  // namespace attune::evolve
