// The parent's side of a worker. Nothing that the child says is believed: its replies are only the
// signal to look at the arena.
#include "evolve/worker/worker.hpp"

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
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "evolve/worker/process.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestReply = 1 << 16;

// A reply repeats it: one that was written before its request cannot know it.
std::array<uint64_t, 2> fresh_nonce() {
  std::array<uint64_t, 2> bits{};
  if (getrandom(bits.data(), sizeof(bits), 0) != sizeof(bits)) bits[0] = uint64_t(clock());
  return bits;
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

// ---- Start and end ----

// A copy in memory that nobody can change: the child opens no file for it.
static Status sealed_copy(const std::string& path, Fd* copy) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (!file) return Status::invalid(path + " cannot be read");
  copy->reset(memfd_create("attune-program", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(copy->get(), bytes.data() + done, bytes.size() - done);
    if (n <= 0) return system_error("cannot copy a program", errno);
    done += size_t(n);
  }
  if (fcntl(copy->get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
      0)
    return system_error("cannot seal the copy of a program", errno);
  return {};
}

Status Worker::start(const WorkerOptions& options, const Arena& arena,
                     std::unique_ptr<Worker>* worker) {
  // A socket for requests, since a write to a pipe whose reader died would be a signal to us.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return system_error("cannot make a socket pair", errno);
  Fd to(ends[0]), requests(ends[1]), from, replies, library;
  ATTUNE_TRY(make_pipe(&from, &replies));

  Spawn what;
  what.program = options.tool;
  what.arguments = {"worker", "--threads", std::to_string(options.threads)};
  if (options.cuda) what.arguments.push_back("--cuda");
  what.environment = small_environment();
  what.environment.insert(what.environment.end(), options.environment.begin(),
                          options.environment.end());
  what.descriptors = {requests.get(),
                      -1,
                      -1,
                      arena.fd(Arena::Part::read),
                      replies.get(),
                      arena.fd(Arena::Part::written)};
  std::unique_ptr<Worker> made(new Worker);
  made->program_ = !options.program.empty();
  if (made->program_) {
    ATTUNE_TRY(sealed_copy(options.program, &library));
    what.descriptors.push_back(library.get());
    what.program = std::filesystem::path(options.tool).replace_filename("attune-program-worker");
    what.arguments = {std::to_string(options.threads)};
    if (!options.sandbox) what.arguments.push_back("--no-sandbox");
  }
  what.limits = {{RLIMIT_CORE, 0}};
  // A sanitizer maps terabytes, and a file of its own; so does a CUDA driver.
  if (!kSanitizer && !options.cuda) {
    what.limits.emplace_back(RLIMIT_FSIZE, 0);
    what.limits.emplace_back(RLIMIT_AS, address_space(options, arena));
  }
  ATTUNE_TRY(spawn(what, &made->pid_));
  if (!options.cuda) pin(made->pid_, options.threads);  // before it starts threads
  const Arena::Mark used = arena.mark();
  const int64_t second = arena.size() - arena.bytes(Arena::Part::written);
  made->setup_ = {used.read, second, second + used.written};
  made->setup_.insert(made->setup_.end(), arena.guards().begin(), arena.guards().end());
  made->guards_ = fmt::format("{}", fmt::join(arena.guards(), ","));
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
    if (WTERMSIG(status) == SIGSEGV)
      text += ": it used memory that is not its own, or wrote to what it may only read";
    return {Reply::Kind::crashed, std::move(text), 0};
  }
  return {Reply::Kind::exited, fmt::format("exit status {}", WEXITSTATUS(status)), 0};
}

// ---- Requests ----

bool Worker::send(std::string_view bytes, double deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(to_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes.remove_prefix(size_t(n));
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

Reply Worker::receive(const Parse& parse, double deadline, double limit_seconds) {
  std::string received;
  for (;;) {
    pollfd ready{from_, POLLIN, 0};
    const int n = poll(&ready, 1, poll_ms(deadline));
    if (n > 0) {
      char buffer[4096];
      const ssize_t got = read(from_, buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return ended(deadline);
      received.append(buffer, size_t(got));
      if (std::optional<Reply> reply = parse(received)) {
        if (reply->kind != Reply::Kind::garbage) return *reply;
        return stopped(reply->kind, reply->text);
      }
      if (received.size() > kLongestReply)
        return stopped(Reply::Kind::garbage, "wrote without end");
    } else if (ended_by(pid_, 0)) {  // a child of its own may hold the pipe open
      return ended(deadline);
    }
    if (stop_ && stop_()) return stopped(Reply::Kind::timeout, "stopped");
    if (monotonic_seconds() >= deadline)
      return stopped(Reply::Kind::timeout, fmt::format("killed after {:.3g} s", limit_seconds));
  }
}

Reply Worker::send_and_receive(std::string_view request, const Parse& parse, double deadline,
                               double limit_seconds) {
  return send(request, deadline)
             ? receive(parse, deadline, limit_seconds)
             : stopped(Reply::Kind::timeout, "did not take the request in time");
}

Reply Worker::timed(double limit_seconds, const std::function<Reply(double deadline)>& talk) {
  if (!alive()) return {Reply::Kind::exited, "the worker has ended", 0};
  // A limit of processor time too, for the case that nobody is left to look at the clock.
  const rlim_t cpu = rlim_t(cpu_seconds() + limit_seconds * threads_) + 2;
  const rlimit limit{cpu, RLIM_INFINITY};
  prlimit(pid_, RLIMIT_CPU, &limit, nullptr);

  const double begin = monotonic_seconds();
  if (program_) resume();
  Reply reply = talk(begin + limit_seconds);
  reply.seconds = monotonic_seconds() - begin;
  if (program_) suspend();
  return reply;
}

Reply Worker::exchange(std::string_view request, const Parse& parse, double limit_seconds) {
  return timed(limit_seconds, [&](double deadline) {
    return send_and_receive(request, parse, deadline, limit_seconds);
  });
}

namespace {

const Reply kNotTheReply{Reply::Kind::garbage, "what it wrote is not the reply to the request", 0};

// A line of JSON; nothing when it is not whole yet.
std::optional<Reply> parse_line(std::string_view received, const std::string& nonce) {
  const size_t end = received.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  if (end + 1 != received.size())
    return Reply{Reply::Kind::garbage, "wrote more than the reply to the request", 0};
  const Json json = Json::parse(received.substr(0, end), nullptr, false);
  const auto has = [&](const char* key, Json::value_t type) {
    return json.is_object() && json.contains(key) && json[key].type() == type;
  };
  if (!has("nonce", Json::value_t::string) || json["nonce"] != nonce ||
      !has("ok", Json::value_t::boolean) || !has("text", Json::value_t::string))
    return kNotTheReply;
  const Reply::Kind kind = json["ok"].get<bool>() ? Reply::Kind::ok : Reply::Kind::refused;
  return Reply{kind, json["text"].get<std::string>(), 0};
}

// In our own words, whatever the program wanted to say.
Reply in_words(const program::Reply& reply) {
  switch (reply.answer) {
    case program::Answer::ok:
      return {};
    case program::Answer::returned:
      return {Reply::Kind::refused, fmt::format("it returned {}", reply.code), 0};
    case program::Answer::threw:
      return {Reply::Kind::refused, "an exception left it", 0};
    case program::Answer::bad_call:
      return {Reply::Kind::refused, "no call at this offset, or one that points out of the arena",
              0};
    case program::Answer::beyond_contract:
      return {Reply::Kind::refused, "the contract of programs does not have this kind of call", 0};
    case program::Answer::no_library:
      return {Reply::Kind::refused, "its shared object cannot be loaded", 0};
    case program::Answer::no_entry:
      return {Reply::Kind::refused, "it does not define the function of this pass", 0};
    case program::Answer::not_now:
      return {Reply::Kind::refused, "loaded already, or not loaded yet", 0};
  }
  return kNotTheReply;
}

// What the process of a CUDA program may say, by how it begins and in our words. Anything else that
// it writes could be what it read in memory or in a file, and texts go into the database, the page
// and questions to models.
constexpr std::pair<std::string_view, const char*> kSayings[] = {
    {"out of memory", "out of memory"},
    {"an exception", "an exception left it"},
    {"the contract of programs does not have",
     "the contract of programs does not have this kind of call"},
    {"no call at", "no call at this offset, or one that points out of the arena"},
    {"it does not define", "it does not define attune_candidate"},
    {"CUDA cannot be used", "CUDA cannot be used in its process"},
    {"the memory of another process", "the memory of the keeper cannot be opened"},
    {"this worker has its candidate already", "loaded already"},
};

// Of the driver's errors.
constexpr const char* kErrors[] = {"INVALID_VALUE",
                                   "OUT_OF_MEMORY",
                                   "NOT_INITIALIZED",
                                   "DEINITIALIZED",
                                   "NO_DEVICE",
                                   "INVALID_DEVICE",
                                   "DEVICE_UNAVAILABLE",
                                   "INVALID_IMAGE",
                                   "INVALID_CONTEXT",
                                   "MAP_FAILED",
                                   "NO_BINARY_FOR_GPU",
                                   "ECC_UNCORRECTABLE",
                                   "INVALID_PTX",
                                   "UNSUPPORTED_PTX_VERSION",
                                   "INVALID_SOURCE",
                                   "OPERATING_SYSTEM",
                                   "INVALID_HANDLE",
                                   "NOT_FOUND",
                                   "NOT_READY",
                                   "ILLEGAL_ADDRESS",
                                   "LAUNCH_OUT_OF_RESOURCES",
                                   "LAUNCH_TIMEOUT",
                                   "CONTEXT_IS_DESTROYED",
                                   "ASSERT",
                                   "HARDWARE_STACK_ERROR",
                                   "ILLEGAL_INSTRUCTION",
                                   "MISALIGNED_ADDRESS",
                                   "INVALID_ADDRESS_SPACE",
                                   "INVALID_PC",
                                   "LAUNCH_FAILED",
                                   "COOPERATIVE_LAUNCH_TOO_LARGE",
                                   "NOT_PERMITTED",
                                   "NOT_SUPPORTED",
                                   "STREAM_CAPTURE_UNSUPPORTED",
                                   "STREAM_CAPTURE_INVALIDATED",
                                   "UNKNOWN"};

std::string number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole ? std::to_string(number) : "";
}

std::string in_our_words(const Reply& reply) {
  const std::string_view text = reply.text;
  if (reply.ok()) return number_in(text);
  constexpr std::string_view kReturned = "attune_candidate returned ";
  if (text.starts_with(kReturned))
    return std::string(kReturned) + number_in(text.substr(kReturned.size()));
  for (const auto& [begin, words] : kSayings)
    if (text.starts_with(begin)) return words;
  for (const char* error : kErrors)
    if (text.find(fmt::format(": CUDA_ERROR_{} (", error)) != std::string_view::npos)
      return fmt::format("the device reports CUDA_ERROR_{}", error);
  return "it refused, in words that are not passed on";
}

// What of the sandbox a program's worker did not get.
std::string lacks_in_words(int32_t bits) {
  std::string text;
  const auto add = [&](int32_t bit, const char* what) {
    if ((bits & bit) != 0) text += (text.empty() ? "" : "; ") + std::string(what);
  };
  add(program::kNoNamespace, "no user namespace");
  add(program::kNoFilter, "no seccomp");
  add(program::kNoFileRules, "no Landlock");
  return text;
}

}  // namespace

// `body`: the members of a JSON object.
Reply Worker::request(const std::string& body, double limit_seconds) {
  const auto bits = fresh_nonce();
  const std::string nonce = fmt::format("{:016x}{:016x}", bits[0], bits[1]);
  return exchange(
      fmt::format("{{\"nonce\":\"{}\",{}}}\n", nonce, body),
      [&](std::string_view received) {
        std::optional<Reply> reply = parse_line(received, nonce);
        if (stranger_ && reply && reply->kind != Reply::Kind::garbage)
          reply->text = in_our_words(*reply);
        return reply;
      },
      limit_seconds);
}

namespace {

template <class Record>
std::string_view bytes_of(const Record& record) {
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

// The record of a program's worker; nothing when it is not whole yet.
std::optional<Reply> parse_record(std::string_view received, const std::array<uint64_t, 2>& nonce,
                                  program::Reply* reply) {
  if (received.size() < sizeof(*reply)) return std::nullopt;
  std::memcpy(reply, received.data(), sizeof(*reply));
  if (received.size() > sizeof(*reply) || reply->nonce[0] != nonce[0] ||
      reply->nonce[1] != nonce[1])
    return kNotTheReply;
  return in_words(*reply);
}

}  // namespace

Reply Worker::ask(program::Ask what, std::span<const int64_t> numbers, double limit_seconds) {
  const auto nonce = fresh_nonce();
  const program::Request header{{nonce[0], nonce[1]}, what, uint32_t(numbers.size())};
  std::string bytes(bytes_of(header));
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  const auto parse = [&](std::string_view received) {
    program::Reply reply;
    std::optional<Reply> words = parse_record(received, nonce, &reply);
    if (what == program::Ask::load && words && words->ok())
      words->text = lacks_in_words(reply.code);
    return words;
  };
  return exchange(bytes, parse, limit_seconds);
}

Reply Worker::load(const std::string& config, const std::string& library, double limit_seconds,
                   const std::string& kernels, const std::string& memory) {
  return request(fmt::format("\"load\":true,\"config\":{},\"library\":{},\"kernels\":{},"
                             "\"memory\":{},\"sandbox\":{},\"guards\":[{}]",
                             quoted(config), quoted(library), quoted(kernels), quoted(memory),
                             sandbox_, guards_),
                 limit_seconds);
}

Reply Worker::load_config(const std::string& config, double limit_seconds) {
  return load(config, "", limit_seconds);
}

Reply Worker::load_tile(const std::string& config, const std::string& library,
                        double limit_seconds) {
  return load(config, library, limit_seconds);
}

Reply Worker::load_on_device(const std::string& config, const std::string& kernels,
                             double limit_seconds) {
  return load(config, "", limit_seconds, kernels);
}

Reply Worker::load_library(const std::string& path, const std::string& memory,
                           double limit_seconds) {
  stranger_ = true;
  return load("", path, limit_seconds, "", memory);
}

Reply Worker::load_program(double limit_seconds) {
  return ask(program::Ask::load, setup_, limit_seconds);
}

Reply Worker::compile(const std::string& config, std::span<const int64_t> calls,
                      double limit_seconds) {
  return request(fmt::format("\"compile\":{},\"for\":[{}]", quoted(config), fmt::join(calls, ",")),
                 limit_seconds);
}

// A program's worker stands still but here: between two requests it could compute what it is not
// timed for.
Reply Worker::run_each(std::span<const int64_t> calls, double limit_seconds,
                       const std::function<void(size_t)>& done) {
  if (calls.empty()) return ask(program::Ask::run, {}, limit_seconds);
  return timed(limit_seconds, [&](double deadline) {
    const auto first = fresh_nonce();
    const program::Request header{{first[0], first[1]}, program::Ask::run, uint32_t(calls.size())};
    std::string bytes(bytes_of(header));
    Reply reply;
    for (size_t n = 0; n < calls.size() && reply.ok(); ++n) {
      const auto nonce = fresh_nonce();
      const program::Call call{{nonce[0], nonce[1]}, calls[n]};
      bytes += bytes_of(call);
      const auto parse = [&](std::string_view received) {
        program::Reply record;
        return parse_record(received, nonce, &record);
      };
      reply = send_and_receive(bytes, parse, deadline, limit_seconds);
      if (reply.ok() && done) done(n);
      bytes.clear();
    }
    return reply;
  });
}

// In two steps, so that the clock sees the calls and not the reading of a long list.
Reply Worker::run(std::span<const int64_t> calls, double limit_seconds, Wait wait) {
  if (program_) return run_each(calls, limit_seconds);
  const Reply ready = request(fmt::format("\"calls\":[{}]", fmt::join(calls, ",")), limit_seconds);
  if (!ready.ok()) return ready;
  return request(fmt::format("\"go\":\"{}\"", wait == Wait::device ? "device" : "stream"),
                 limit_seconds);
}

Reply Worker::run_at_once(std::span<const int64_t> calls, double limit_seconds, Wait wait) {
  return request(fmt::format("\"calls\":[{}],\"go\":\"{}\"", fmt::join(calls, ","),
                             wait == Wait::device ? "device" : "stream"),
                 limit_seconds);
}

Reply Worker::worst_rows(std::span<const int64_t> calls, double limit_seconds) {
  return request(fmt::format("\"worst_rows\":[{}]", fmt::join(calls, ",")), limit_seconds);
}

Reply Worker::shared_inputs(double limit_seconds) {
  return request("\"shared_inputs\":true", limit_seconds);
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

Reply Worker::share(std::span<const Range> inputs, double limit_seconds) {
  return move("share", inputs, limit_seconds);
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
  if (!alive() || suspended_) return;
  kill(-pid_, SIGSTOP);
  suspended_ = true;
  // Until all of its threads stand still, or it has ended.
  for (const double deadline = monotonic_seconds() + 1; monotonic_seconds() < deadline;) {
    siginfo_t info{};
    if (waitid(P_PID, id_t(pid_), &info, WSTOPPED | WNOHANG) != 0 || info.si_pid == pid_) return;
    if (ended_by(pid_, 0)) return;
    sched_yield();
  }
}

void Worker::resume() {
  if (!alive() || !suspended_) return;
  kill(-pid_, SIGCONT);
  suspended_ = false;
}

double Worker::cpu_seconds() const {
  clockid_t clock;
  timespec t{};
  if (!alive() || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

bool Worker::ready_to_run() const {
  if (!alive()) return false;
  std::error_code error;
  std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", pid_), error), end;
  for (; !error && task != end; task.increment(error)) {
    std::ifstream file(task->path() / "stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const size_t name_end = text.rfind(") ");  // of a name that can hold anything
    if (name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'R')
      return true;
  }
  return false;
}

int Worker::thread_count() const {
  if (!alive()) return 0;
  std::ifstream status(fmt::format("/proc/{}/status", pid_));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("Threads:")) return std::atoi(line.c_str() + 8);
  return 0;
}

}  // namespace attune::evolve
