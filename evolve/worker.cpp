// The parent's side of a worker. Nothing that the child says is believed: its replies are only the
// signal to look at the arena.
#include "evolve/worker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "evolve/process.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestReply = 1 << 16;

Status system_error(const char* what) {
  return {ATTUNE_INTERNAL, fmt::format("{}: {}", what, std::generic_category().message(errno))};
}

// A reply repeats it: one that was written before its request cannot know it.
std::string fresh_nonce() {
  uint64_t bits[2] = {};
  if (getrandom(bits, sizeof(bits), 0) != sizeof(bits)) bits[0] = uint64_t(clock());
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

// A sanitizer's handlers would turn a signal into an exit code.
void set_sanitizer_options(std::vector<std::string>* environment) {
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    const char* given = std::getenv(name);
    environment->push_back(fmt::format(
        "{}={}:handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigill=0:handle_sigfpe=0", name,
        given != nullptr ? given : ""));
  }
}

std::vector<std::string> small_environment() {
  std::vector<std::string> environment;
  inherit("LD_LIBRARY_PATH", &environment);  // where the tool's own libraries may lie
  inherit("QEMU_LD_PREFIX", &environment);
  if (kSanitizer) set_sanitizer_options(&environment);
  return environment;
}

// The candidate's share beside what the arena, stacks and the allocator's arenas of threads take.
rlim_t address_space(const WorkerOptions& options, const Arena& arena) {
  constexpr int64_t kThreadBytes = int64_t{160} << 20;
  return rlim_t(options.memory_bytes + arena.size() + options.threads * kThreadBytes);
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A kernel with fewer threads than there are processors runs on the same ones in every worker:
// processors differ, by what else they do, and two equal programs must not.
void pin(pid_t pid, int threads) {
  cpu_set_t all, some;
  CPU_ZERO(&some);
  if (sched_getaffinity(0, sizeof(all), &all) != 0 || threads >= CPU_COUNT(&all)) return;
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && CPU_COUNT(&some) < threads; --cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &some);
  (void)sched_setaffinity(pid, sizeof(some), &some);
}

int poll_ms(double deadline) {
  return int(std::clamp(std::ceil((deadline - monotonic_seconds()) * 1e3), 0.0, 100.0));
}

}  // namespace

// ---- Arena ----

Status Arena::create(int64_t bytes, std::unique_ptr<Arena>* arena) {
  std::unique_ptr<Arena> made(new Arena);
  made->fd_ = memfd_create("attune-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made->fd_ < 0) return system_error("cannot make shared memory");
  // Whoever could shrink it would end the parent with a bus error.
  if (ftruncate(made->fd_, bytes) != 0 ||
      fcntl(made->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error("cannot size shared memory");
  void* base = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, made->fd_, 0);
  if (base == MAP_FAILED) return system_error("cannot map shared memory");
  made->base_ = static_cast<std::byte*>(base);
  made->size_ = bytes;
  *arena = std::move(made);
  return {};
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, size_t(size_));
  if (fd_ >= 0) close(fd_);
}

int64_t Arena::take(int64_t bytes, int64_t misaligned) {
  const int64_t at = (used_ + 63) / 64 * 64 + misaligned;
  if (bytes < 0 || at > size_ || bytes > size_ - at) return -1;
  used_ = at + bytes;
  return at;
}

// ---- Start and end ----

Status Worker::start(const WorkerOptions& options, const Arena& arena,
                     std::unique_ptr<Worker>* worker) {
  // A socket for requests, since a write to a pipe whose reader died would be a signal to us.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return system_error("cannot make a socket pair");
  Fd to(ends[0]), requests(ends[1]), from, replies;
  ATTUNE_TRY(make_pipe(&from, &replies));

  Spawn what;
  what.program = options.tool;
  what.arguments = {"worker", "--threads", std::to_string(options.threads)};
  if (options.cuda) what.arguments.push_back("--cuda");
  what.environment = small_environment();
  what.environment.insert(what.environment.end(), options.environment.begin(),
                          options.environment.end());
  what.descriptors = {requests.get(), -1, -1, arena.fd(), replies.get()};
  what.limits = {{RLIMIT_CORE, 0}};
  // A sanitizer maps terabytes, and a file of its own; so does a CUDA driver.
  if (!kSanitizer && !options.cuda) {
    what.limits.emplace_back(RLIMIT_FSIZE, 0);
    what.limits.emplace_back(RLIMIT_AS, address_space(options, arena));
  }
  std::unique_ptr<Worker> made(new Worker);
  ATTUNE_TRY(spawn(what, &made->pid_));
  if (!options.cuda) pin(made->pid_, options.threads);  // before it starts threads
  made->threads_ = options.threads;
  made->sandbox_ = options.sandbox;
  made->stop_ = options.stop;
  made->to_ = to.release();
  made->from_ = from.release();
  *worker = std::move(made);
  return {};
}

Worker::~Worker() {
  if (alive()) finish();
}

int Worker::finish() {
  const int status = kill_group(pid_);
  pid_ = -1;
  close(to_);
  close(from_);
  return status;
}

Reply Worker::stopped(Reply::Kind kind, std::string text) {
  finish();
  return {kind, std::move(text), 0};
}

// Its end of the pipe is closed. When it is still there, it did that on purpose.
Reply Worker::ended(double deadline) {
  if (!ended_by(pid_, std::min(deadline, monotonic_seconds() + 1)))
    return stopped(Reply::Kind::garbage, "closed the channel of its replies");
  const int status = finish();
  if (status == -1) return {Reply::Kind::exited, "its status is lost", 0};
  if (WIFSIGNALED(status)) {
    std::string text = signal_name(WTERMSIG(status));
    if (WTERMSIG(status) == SIGSYS) text += ": a system call that no candidate may make";
    return {Reply::Kind::crashed, std::move(text), 0};
  }
  return {Reply::Kind::exited, fmt::format("exit status {}", WEXITSTATUS(status)), 0};
}

// ---- Requests ----

bool Worker::send(std::string_view line, double deadline) {
  while (!line.empty()) {
    const ssize_t n = ::send(to_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      line.remove_prefix(size_t(n));
    } else if (errno == EAGAIN) {
      if (monotonic_seconds() >= deadline) return false;
      pollfd ready{to_, POLLOUT, 0};
      poll(&ready, 1, poll_ms(deadline));
    } else if (errno != EINTR) {
      break;  // it is gone: reading the reply says how
    }
  }
  return true;
}

Reply Worker::parse(std::string_view line, const std::string& nonce) {
  const Json json = Json::parse(line, nullptr, false);
  const auto has = [&](const char* key, Json::value_t type) {
    return json.is_object() && json.contains(key) && json[key].type() == type;
  };
  if (!has("nonce", Json::value_t::string) || json["nonce"] != nonce ||
      !has("ok", Json::value_t::boolean) || !has("text", Json::value_t::string))
    return stopped(Reply::Kind::garbage, "what it wrote is not the reply to the request");
  const Reply::Kind kind = json["ok"].get<bool>() ? Reply::Kind::ok : Reply::Kind::refused;
  return {kind, json["text"].get<std::string>(), 0};
}

Reply Worker::receive(const std::string& nonce, double deadline, double limit_seconds) {
  for (;;) {
    pollfd ready{from_, POLLIN, 0};
    const int n = poll(&ready, 1, poll_ms(deadline));
    if (n > 0) {
      char buffer[4096];
      const ssize_t got = read(from_, buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return ended(deadline);
      received_.append(buffer, size_t(got));
      if (const size_t end = received_.find('\n'); end != std::string::npos) {
        const std::string line = received_.substr(0, end);
        received_.erase(0, end + 1);
        if (!received_.empty())
          return stopped(Reply::Kind::garbage, "wrote more than the reply to the request");
        return parse(line, nonce);
      }
      if (received_.size() > kLongestReply)
        return stopped(Reply::Kind::garbage, "wrote without end");
    } else if (ended_by(pid_, 0)) {  // a child of its own may hold the pipe open
      return ended(deadline);
    }
    if (stop_ && stop_()) return stopped(Reply::Kind::timeout, "stopped");
    if (monotonic_seconds() >= deadline)
      return stopped(Reply::Kind::timeout, fmt::format("killed after {:.3g} s", limit_seconds));
  }
}

// `body`: the members of a JSON object.
Reply Worker::request(std::string body, double limit_seconds) {
  if (!alive()) return {Reply::Kind::exited, "the worker has ended", 0};
  // A limit of processor time too, for the case that nobody is left to look at the clock.
  const rlim_t cpu = rlim_t(cpu_seconds() + limit_seconds * threads_) + 2;
  const rlimit limit{cpu, RLIM_INFINITY};
  prlimit(pid_, RLIMIT_CPU, &limit, nullptr);

  const std::string nonce = fresh_nonce();
  const std::string line = fmt::format("{{\"nonce\":\"{}\",{}}}\n", nonce, body);
  const double begin = monotonic_seconds(), deadline = begin + limit_seconds;
  Reply reply = send(line, deadline)
                    ? receive(nonce, deadline, limit_seconds)
                    : stopped(Reply::Kind::timeout, "did not take the request in time");
  reply.seconds = monotonic_seconds() - begin;
  return reply;
}

Reply Worker::load(const std::string& config, const std::string& library, double limit_seconds) {
  return request(fmt::format("\"load\":true,\"config\":{},\"library\":{},\"sandbox\":{}",
                             quoted(config), quoted(library), sandbox_),
                 limit_seconds);
}

Reply Worker::load_config(const std::string& config, double limit_seconds) {
  return load(config, "", limit_seconds);
}

Reply Worker::load_tile(const std::string& config, const std::string& library,
                        double limit_seconds) {
  return load(config, library, limit_seconds);
}

Reply Worker::load_library(const std::string& path, double limit_seconds) {
  return load("", path, limit_seconds);
}

Reply Worker::compile(const std::string& config, std::span<const int64_t> calls,
                      double limit_seconds) {
  return request(fmt::format("\"compile\":{},\"for\":[{}]", quoted(config), fmt::join(calls, ",")),
                 limit_seconds);
}

// In two steps, so that the clock sees the calls and not the reading of a long list.
Reply Worker::run(std::span<const int64_t> calls, double limit_seconds, Wait wait) {
  const Reply ready = request(fmt::format("\"calls\":[{}]", fmt::join(calls, ",")), limit_seconds);
  if (!ready.ok()) return ready;
  return request(fmt::format("\"go\":\"{}\"", wait == Wait::device ? "device" : "stream"),
                 limit_seconds);
}

Reply Worker::move(const char* what, std::span<const Range> ranges, double limit_seconds) {
  std::string list;
  for (const Range& r : ranges)
    list += fmt::format("{}[{},{}]", list.empty() ? "" : ",", r.at, r.bytes);
  return request(fmt::format("\"{}\":[{}]", what, list), limit_seconds);
}

Reply Worker::upload(std::span<const Range> ranges, double limit_seconds) {
  return move("upload", ranges, limit_seconds);
}

Reply Worker::fetch(std::span<const Range> ranges, double limit_seconds) {
  return move("fetch", ranges, limit_seconds);
}

Reply Worker::poison(std::span<const Range> ranges, double limit_seconds) {
  return move("poison", ranges, limit_seconds);
}

Reply Worker::synchronize(double limit_seconds) {
  return request("\"synchronize\":true", limit_seconds);
}

Reply Worker::reserved_cache(double limit_seconds) {
  return request("\"reserved_cache\":true", limit_seconds);
}

void Worker::suspend() {
  if (alive()) kill(-pid_, SIGSTOP);
}

void Worker::resume() {
  if (alive()) kill(-pid_, SIGCONT);
}

double Worker::cpu_seconds() const {
  clockid_t clock;
  timespec t{};
  if (!alive() || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

int Worker::thread_count() const {
  if (!alive()) return 0;
  std::ifstream status(fmt::format("/proc/{}/status", pid_));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Threads:")) return std::atoi(line.c_str() + 8);
  return 0;
}

}  // namespace attune::evolve
