// The process of one program on the CPU. It has the program's shared object, a pool of threads and
// a loop: none of the library's kernels, no reference, no clock. It is trusted with nothing, since
// the program shares its memory.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "evolve/program/protocol.hpp"
#include "evolve/worker/landlock.hpp"
#include "evolve/worker/process.hpp"
#include "evolve/worker/program_call.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/cpu/pool.hpp"

namespace attune::evolve::program {
namespace {

using Entry = int (*)(const attune_candidate_call*);
using BackwardEntry = int (*)(const attune_candidate_backward_call*);

// A task that throws ends the process: the others might go on behind the exception's back.
void parallel_for(void* host, int64_t count, attune_candidate_task task, void* context) noexcept {
  static_cast<const cpu::Executor*>(host)->parallel_for(
      count, [&](int64_t index) { task(context, index); });
}

bool read_all(void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = read(kRequestFd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= size_t(n);
  }
  return true;
}

bool write_all(const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = write(kReplyFd, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= size_t(n);
  }
  return true;
}

class ProgramWorker {
 public:
  ProgramWorker(Memory memory, int threads, bool sandbox) : memory_(memory), sandbox_(sandbox) {
    executor_.threads = threads;
  }

  // False when the parent is gone.
  bool serve() {
    Request request;
    if (!read_all(&request, sizeof(request)) || request.count > kMostNumbers) return false;
    if (request.ask == Ask::run && request.count > 0) return run(request.count);
    Reply reply{{request.nonce[0], request.nonce[1]}, Answer::ok, 0};
    if (request.ask == Ask::load) {
      numbers_.resize(request.count);
      if (!read_all(numbers_.data(), numbers_.size() * sizeof(int64_t))) return false;
      reply.answer = loaded_ ? Answer::not_now : load(&reply.code);
    }
    return write_all(&reply, sizeof(reply));
  }

 private:
  // Files can be opened no longer when the first line of the program runs: its shared object is
  // memory, and the libraries that it may need are loaded before.
  Answer load(int32_t* lacks) {
    loaded_ = true;
    if (numbers_.size() < 3 || !touch() || !guard_pages(memory_, std::span(numbers_).subspan(3)))
      return Answer::bad_call;
    for (const char* name : {"libmvec.so.1", "libc++.so.1", "libc++abi.so.1", "libunwind.so.1"})
      (void)dlopen(name, RTLD_NOW | RTLD_LOCAL);  // not every machine has them
    if (sandbox_ && !enter_namespaces().ok()) *lacks |= kNoNamespace;
    // A sanitizer's runtime reads files when the process ends.
    if (sandbox_ && (kSanitizer || !restrict_files({}).ok())) *lacks |= kNoFileRules;
    executor_.parallel_for(executor_.threads, [](int64_t) {});  // starts the pool's threads
    if (sandbox_ && !enter_sandbox().ok()) *lacks |= kNoFilter;
    void* library = nullptr;
    try {
      library = dlopen("/proc/self/fd/6", RTLD_NOW | RTLD_LOCAL);
    } catch (...) {  // a constructor's
      return Answer::threw;
    }
    if (library == nullptr) return Answer::no_library;
    entry_ = reinterpret_cast<Entry>(dlsym(library, "attune_candidate"));
    backward_ = reinterpret_cast<BackwardEntry>(dlsym(library, "attune_candidate_backward"));
    if (entry_ == nullptr && backward_ == nullptr) return Answer::no_entry;
    if (sandbox_ && (*lacks & kNoFilter) == 0) {
      for (int fd = kReplyFd + 1; fd < 64; ++fd) close(fd);  // what a constructor left open
      (void)forbid_files();
      (void)forbid_code();
    }
    return Answer::ok;
  }

  // Every page that timed calls use becomes known to this process now. A worker that had not seen a
  // page would pay for that while it is timed, and an older one would not.
  bool touch() const {
    const int64_t read_end = numbers_[0], begin = numbers_[1], end = numbers_[2];
    if (!memory_.holds({0, read_end}) || begin > end || !memory_.holds({begin, end - begin}))
      return false;
    const auto* bytes = reinterpret_cast<volatile uint8_t*>(memory_.base);
    for (int64_t at = 0; at < read_end; at += 4096) (void)bytes[at];
    for (int64_t at = begin; at < end; at += 4096) {
      auto* byte = reinterpret_cast<volatile uint8_t*>(memory_.base + at);
      *byte = *byte;
    }
    return true;
  }

  // Each call becomes known when the one before it was answered: several at once would be faster
  // than one after another. What fails is the last.
  bool run(uint32_t count) {
    for (; count > 0; --count) {
      Call call;
      if (!read_all(&call, sizeof(call))) return false;
      Reply reply{{call.nonce[0], call.nonce[1]}, Answer::ok, 0};
      if (call.offset != kNoCall) reply.answer = run_one(call.offset, &reply.code);
      if (!write_all(&reply, sizeof(reply))) return false;
      if (reply.answer != Answer::ok) return true;
    }
    return true;
  }

  Answer run_one(int64_t offset, int32_t* code) {
    if (entry_ == nullptr && backward_ == nullptr) return Answer::not_now;
    ArenaCall from;
    if (!memory_.get(offset, memory_.base, &from)) return Answer::bad_call;
    if (evolve::beyond_contract(from.problem) != nullptr) return Answer::beyond_contract;
    const bool backward = from.problem.pass == Pass::backward;
    if (backward ? backward_ == nullptr : entry_ == nullptr) return Answer::no_entry;
    attune_candidate_backward_call all = program_backward_call(from);
    attune_candidate_call& call = all.forward;
    call.parallel_for = &parallel_for;
    call.host = &executor_;
    call.threads = executor_.threads;
    try {
      *code = backward ? backward_(&all) : entry_(&call);
    } catch (...) {
      return Answer::threw;
    }
    return *code == 0 ? Answer::ok : Answer::returned;
  }

  Memory memory_;
  bool sandbox_, loaded_ = false;
  cpu::Executor executor_;
  Entry entry_ = nullptr;
  BackwardEntry backward_ = nullptr;
  std::vector<int64_t> numbers_;
};

}  // namespace
}  // namespace attune::evolve::program

int main(int argc, char** argv) {
  using namespace attune::evolve;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  Memory memory;
  if (threads < 1 || !map_arena(program::kReadFd, program::kWrittenFd, &memory)) {
    std::fputs("attune-program-worker is started by 'attune evolve', not by hand\n", stderr);
    return 2;
  }
  const bool sandbox = !(argc > 2 && std::strcmp(argv[2], "--no-sandbox") == 0);
  // Never destroyed, and no exit of the usual kind: both would run code of the program.
  auto* worker = new program::ProgramWorker(memory, threads, sandbox);
  while (worker->serve()) {
  }
  _exit(0);
}
