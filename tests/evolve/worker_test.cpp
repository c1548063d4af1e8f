#include "evolve/worker/worker.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "evolve/compile/host_compile.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/worker/process.hpp"
#include "evolve/worker/sandbox.hpp"
#include "src/check/data.hpp"
#include "src/check/judge.hpp"
#include "src/cpu/fused.hpp"
#include "src/select/select.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr double kLoad = 20, kRun = 20;  // seconds; limits that only a hang reaches
constexpr int kThreads = 2;

// A folder of this process, gone with it.
const fs::path& scratch() {
  struct Folder {
    fs::path path = fs::temp_directory_path() / fmt::format("attune_worker_test.{}", getpid());
    Folder() { fs::create_directories(path); }
    ~Folder() {
      std::error_code error;
      fs::remove_all(path, error);
    }
  };
  static const Folder folder;
  return folder.path;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string candidate_path(const std::string& name) {
  return fmt::format("{}/tests/evolve/candidates/{}.cpp", source_dir(), name);
}

// Without the look at what it links, which would stop most of the hostile ones already.
std::string compile(const std::string& name, const std::string& flags = "") {
  const fs::path library = scratch() / (name + ".so");
  if (fs::exists(library)) return library;
  const std::string command = fmt::format(
      "'{}' -std=c++20 -O1 -w -shared -fPIC -I'{}/evolve/compile' {} '{}' -o '{}'",
      host_compiler().path, source_dir(), flags, candidate_path(name), library.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return library;
}

// A case's tensors in an arena, and back.
struct InArena {
  InArena(const check::Case& c, Arena* arena) : the_case(c), data(the_case), arena_(arena) {
    ArenaCall call{c.problem, data.params()};
    for (check::Tensor* t : data.tensors()) {
      const bool written = t == &data.out || t == &data.lse;
      const int64_t at = arena->take(written ? Arena::Part::written : Arena::Part::read,
                                     int64_t(t->bytes().size()));
      EXPECT_GE(at, 0);
      tensors_.emplace_back(t, at);
      if (!t->bytes().empty())
        std::memcpy(arena->base() + at, t->bytes().data(), t->bytes().size());
    }
    Params& a = call.params;
    for (View* v : {&a.q, &a.k, &a.v, &a.out, &a.lse}) v->data = offset_of<void>(v->data);
    for (View4* v : {&a.mask, &a.block_mask}) v->data = offset_of<void>(v->data);
    a.alibi_slopes = offset_of<const float>(a.alibi_slopes);
    a.sinks = offset_of<const float>(a.sinks);
    a.cu_seqlens_q = offset_of<const int32_t>(a.cu_seqlens_q);
    a.cu_seqlens_k = offset_of<const int32_t>(a.cu_seqlens_k);
    a.key_lengths = offset_of<const int32_t>(a.key_lengths);
    offset = arena->take(Arena::Part::read, sizeof(call));
    EXPECT_GE(offset, 0);
    std::memcpy(arena->base() + offset, &call, sizeof(call));
  }

  check::Verdict verdict() {
    const std::vector<uint64_t> before = check::hashes_of_inputs(data);
    for (auto& [tensor, at] : tensors_)
      if (!tensor->bytes().empty())
        std::memcpy(tensor->bytes().data(), arena_->base() + at, tensor->bytes().size());
    check::Verdict v = check::compare(data, check::expect(data, cpu::Executor{}));
    const std::string damage = check::damage(data, before);
    if (!damage.empty()) v = {.why = damage};
    return v;
  }

  check::Case the_case;  // which the data refer to
  check::Data data;
  int64_t offset = 0;

 private:
  template <class T>
  T* offset_of(T* pointer) const {
    if (pointer == nullptr) return nullptr;
    const auto* byte = reinterpret_cast<const uint8_t*>(pointer);
    for (const auto& [tensor, at] : tensors_) {
      const std::vector<uint8_t>& bytes = tensor->bytes();
      if (byte >= bytes.data() && byte < bytes.data() + bytes.size())
        return as_offset<T>(at + (byte - bytes.data()));
    }
    ADD_FAILURE() << "a pointer that belongs to no tensor";
    return nullptr;
  }

  Arena* arena_;
  std::vector<std::pair<check::Tensor*, int64_t>> tensors_;
};

check::Case small_case(DType dtype = DType::f32) {
  check::Case c;
  c.problem = {.dtype = dtype,
               .batch = 1,
               .heads_q = 4,
               .heads_kv = 2,
               .seq_q = 19,
               .seq_k = 37,
               .dim = 16,
               .dim_v = 24,
               .lse = true};
  c.seed = 7;
  return c;
}

std::string fused_config() {
  CpuVariant v{.fused = true, .config = {}, .isa = cpu::isa_name()};
  v.config = default_cpu_config(small_case().problem, cpu::arch(), kThreads);
  return to_string(v);
}

class WorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (fork_cannot_exec()) GTEST_SKIP() << "this machine does not run " << tool_path();
    ASSERT_TRUE(Arena::create(64 << 20, 64 << 20, &arena).ok());
  }

  // An emulator runs the tests, but nobody runs what they start.
  static bool fork_cannot_exec() {
    pid_t pid = -1;
    const Status status = spawn({tool_path(), {"--version"}, {}, "", {-1, -1, -1}, {}}, &pid);
    if (status.ok()) kill_group(pid);
    return status.message.find("Exec format error") != std::string::npos;
  }

  std::unique_ptr<Worker> start_program(const std::string& library, WorkerOptions options = {}) {
    options.program = library;
    return start(options);
  }

  std::unique_ptr<Worker> start(WorkerOptions options = {}) {
    options.tool = tool_path();
    options.threads = kThreads;
    std::unique_ptr<Worker> worker;
    const Status status = Worker::start(options, *arena, &worker);
    EXPECT_TRUE(status.ok()) << status.message;
    return worker;
  }

  void expect_a_new_worker_works() {
    arena->reset();
    InArena in(small_case(), arena.get());
    const auto worker = start();
    const Reply loaded = worker->load_config("naive", kLoad);
    ASSERT_TRUE(loaded.ok()) << loaded.text;
    const Reply ran = worker->run(std::vector{in.offset}, kRun);
    ASSERT_TRUE(ran.ok()) << ran.text;
    const check::Verdict v = in.verdict();
    EXPECT_TRUE(v.ok) << v.why;
  }

  // A sanitizer has a thread of its own.
  static void expect_no_other_threads(const Worker& worker) {
    EXPECT_EQ(worker.thread_count(), kSanitizer ? worker.thread_count() : kThreads);
  }

  static void expect_nothing_left(pid_t group) {
    EXPECT_EQ(kill(-group, 0), -1);
    EXPECT_EQ(errno, ESRCH);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child, not even a dead one
    EXPECT_EQ(errno, ECHILD);
  }

  std::unique_ptr<Arena> arena;
};

TEST(Arena, GivesAlignedPiecesUntilItIsFull) {
  std::unique_ptr<Arena> arena;
  const int64_t page = page_bytes();
  ASSERT_TRUE(Arena::create(2 * page, page, &arena).ok());
  EXPECT_EQ(arena->size(), 3 * page);
  for (const Arena::Part part : {Arena::Part::written, Arena::Part::read}) {
    const int64_t bytes = arena->bytes(part), begin = part == Arena::Part::written ? 2 * page : 0;
    EXPECT_EQ(arena->take(part, 10), begin);
    EXPECT_EQ(arena->take(part, 10), begin + 64);
    EXPECT_EQ(arena->take(part, 10, 4), begin + 132);
    EXPECT_EQ(arena->take(part, bytes), -1);
    EXPECT_EQ(arena->take(part, -1), -1);
    EXPECT_EQ(arena->take(part, bytes - 192), begin + 192);
    EXPECT_EQ(arena->take(part, 1), -1);
    EXPECT_EQ(ftruncate(arena->fd(part), 0), -1);  // nobody takes it away
  }
  arena->reset();
  EXPECT_EQ(arena->take(Arena::Part::read, 2 * page), 0);
  const Arena::Mark mark = arena->mark();
  EXPECT_EQ(arena->take(Arena::Part::written, 100), 2 * page);
  const std::vector<Range> since = arena->since(mark);
  ASSERT_EQ(since.size(), 1u);
  EXPECT_EQ(since[0].at, 2 * page);
  EXPECT_EQ(since[0].bytes, 100);
}

// Whoever has the descriptors of a child.
TEST(Arena, CanOnlyBeReadWhereCallsRead) {
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(4096, 4096, &arena).ok());
  arena->base()[1] = std::byte{7};
  const int fd = arena->fd(Arena::Part::read);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  void* mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(static_cast<const char*>(mapped)[1], 7);
  EXPECT_NE(mprotect(mapped, 4096, PROT_READ | PROT_WRITE), 0);
  (void)madvise(mapped, 4096, MADV_REMOVE);  // an emulator says that it did
  EXPECT_EQ(static_cast<const char*>(mapped)[1], 7);
  EXPECT_EQ(write(fd, "x", 1), -1);
  arena->base()[1] = std::byte{8};  // the parent goes on
  EXPECT_EQ(static_cast<const char*>(mapped)[1], 8);
  munmap(mapped, 4096);
}

TEST(Arena, PutsPagesAroundWhatIsGuarded) {
  std::unique_ptr<Arena> arena;
  const int64_t page = page_bytes();
  ASSERT_TRUE(Arena::create(page, 16 * page, &arena).ok());
  const int64_t first = arena->take_guarded(5000), second = arena->take_guarded(64);
  ASSERT_EQ(arena->guards().size(), 4u);
  const int64_t before = arena->guards()[0], behind = arena->guards()[1];
  EXPECT_EQ(first % 64, 0);
  EXPECT_GE(first, before + page);
  EXPECT_LE(first + 5000, behind);
  EXPECT_LT(behind - (first + 5000), 64);
  EXPECT_GE(second, arena->guards()[2] + page);
  EXPECT_EQ(arena->take_guarded(16 * page), -1);
  arena->reset();
  EXPECT_TRUE(arena->guards().empty());
}

// Every feature passes through the arena, so every pointer must have moved.
TEST_F(WorkerTest, TypedConfigsComputeInTheArena) {
  for (const std::string& config : {std::string("naive"), fused_config()}) {
    const auto worker = start();
    const Reply loaded = worker->load_config(config, kLoad);
    ASSERT_TRUE(loaded.ok()) << config << ": " << loaded.text;
    const std::vector<check::Case> cases = check::suite(check::Suite::quick, 1);
    int ran = 0;
    for (size_t n = 0; n < cases.size(); n += 5) {
      const Problem& p = cases[n].problem;
      if (p.batch * p.heads_q * p.seq_q * p.seq_k == 0 || p.seq_k > 300) continue;
      if (config != "naive" &&
          *invalid_reason(parse_cpu_variant(config)->config, p, cpu::arch()) != 0)
        continue;
      arena->reset();
      InArena in(cases[n], arena.get());
      const Reply reply = worker->run(std::vector{in.offset}, kRun);
      ASSERT_TRUE(reply.ok()) << cases[n].name() << ": " << reply.text;
      const check::Verdict v = in.verdict();
      EXPECT_TRUE(v.ok) << config << " " << cases[n].name() << ": " << v.why;
      ++ran;
    }
    EXPECT_GT(ran, 20);
  }
}

TEST_F(WorkerTest, RunsManyCallsAndKeepsTheParentsClock) {
  InArena first(small_case(), arena.get()), second(small_case(DType::f16), arena.get());
  const auto worker = start();
  ASSERT_TRUE(worker->load_config(fused_config(), kLoad).ok());
  std::vector<int64_t> calls;
  for (int n = 0; n < 5000; ++n) calls.push_back(n % 2 == 0 ? first.offset : second.offset);
  const double before = worker->cpu_seconds();
  const Reply reply = worker->run(calls, kRun);
  ASSERT_TRUE(reply.ok()) << reply.text;
  EXPECT_GT(reply.seconds, 0);
  EXPECT_LT(reply.seconds, kRun);
  EXPECT_GT(worker->cpu_seconds(), before);
  expect_no_other_threads(*worker);
  EXPECT_TRUE(first.verdict().ok);
  EXPECT_TRUE(second.verdict().ok);
  EXPECT_TRUE(worker->run({}, kRun).ok());
}

TEST_F(WorkerTest, RefusesWhatItCannotDoAndGoesOn) {
  InArena in(small_case(), arena.get());
  const std::vector<int64_t> calls = {in.offset};
  {
    const auto worker = start();
    EXPECT_EQ(worker->run(calls, kRun).kind, Reply::Kind::refused);  // nothing is loaded
    const Reply reply = worker->load_config("nonsense", kLoad);
    EXPECT_EQ(reply.kind, Reply::Kind::refused);
    EXPECT_NE(reply.text.find("nonsense"), std::string::npos) << reply.text;
    EXPECT_EQ(worker->load_config("naive", kLoad).kind, Reply::Kind::refused);  // a second load
  }
  {
    CpuVariant v{.fused = true, .config = {}, .isa = "ABACUS"};
    EXPECT_EQ(start()->load_config(to_string(v), kLoad).kind, Reply::Kind::refused);
    v = {.fused = true, .config = {}, .isa = cpu::isa_name()};
    v.config.mr = 4;
    v.config.nv = 2;
    v.config.exp_degree = 4;  // too coarse for fp32
    const auto worker = start();
    ASSERT_TRUE(worker->load_config(to_string(v), kLoad).ok());
    EXPECT_EQ(worker->run(calls, kRun).kind, Reply::Kind::refused);
    InArena half(small_case(DType::f16), arena.get());
    EXPECT_TRUE(worker->run(std::vector{half.offset}, kRun).ok());
  }
  {
    const auto worker = start();
    ASSERT_TRUE(worker->load_config("naive", kLoad).ok());
    for (int64_t offset : {int64_t{-1}, arena->size(), arena->size() - 8, INT64_MAX})
      EXPECT_EQ(worker->run(std::vector{offset}, kRun).kind, Reply::Kind::refused) << offset;
    ArenaCall call;
    std::memcpy(&call, arena->base() + in.offset, sizeof(call));
    call.params.k.data = as_offset<void>(arena->size());
    std::memcpy(arena->base() + in.offset, &call, sizeof(call));
    EXPECT_EQ(worker->run(calls, kRun).kind, Reply::Kind::refused);
    EXPECT_TRUE(worker->alive());
  }
}

TEST_F(WorkerTest, SaysWhyAToolDoesNotStart) {
  std::unique_ptr<Worker> worker;
  const Status status = Worker::start({.tool = "/nonexistent/attune"}, *arena, &worker);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message.find("/nonexistent/attune"), std::string::npos) << status.message;
  // A program that is no worker.
  ASSERT_TRUE(Worker::start({.tool = "/bin/true"}, *arena, &worker).ok());
  EXPECT_EQ(worker->load_config("naive", kLoad).kind, Reply::Kind::exited);
  EXPECT_EQ(worker->run({}, kRun).kind, Reply::Kind::exited);
  EXPECT_FALSE(worker->alive());
}

TEST_F(WorkerTest, SaysWhyAProgramDoesNotStart) {
  std::unique_ptr<Worker> worker;
  const WorkerOptions missing{.tool = tool_path(), .program = "/nonexistent.so"};
  const Status status = Worker::start(missing, *arena, &worker);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message.find("/nonexistent.so"), std::string::npos) << status.message;
  const std::string text = scratch() / "text.so";
  std::ofstream(text) << "no shared object";
  const auto empty = start_program(text);
  EXPECT_TRUE(empty->run({}, kRun).ok());  // a request without a call needs no program
  const Reply loaded = empty->load_program(kLoad);
  EXPECT_EQ(loaded.kind, Reply::Kind::refused);
  EXPECT_NE(loaded.text.find("cannot be loaded"), std::string::npos) << loaded.text;
  EXPECT_EQ(empty->load_program(kLoad).kind, Reply::Kind::refused);
}

// ---- Programs ----

class WorkerProgramTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    if (host_compiler().path.empty()) GTEST_SKIP() << host_compiler().why_not;
  }
};

TEST_F(WorkerProgramTest, HonestOnesAreRight) {
  for (const char* name : {"honest_naive", "honest_blocked"}) {
    const Built built = build_candidate(read_file(candidate_path(name)), scratch(), 60);
    ASSERT_EQ(built.verdict, Verdict::ok) << name << ": " << built.why;
    const auto worker = start_program(built.library);
    const Reply loaded = worker->load_program(kLoad);
    ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.text;
    for (DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (int causal : {0, 1, 2})
        for (bool strided : {false, true}) {
          check::Case c = small_case(dtype);
          c.problem.causal = causal != 0;
          c.problem.alignment = causal == 2 ? Alignment::bottom_right : Alignment::top_left;
          if (strided) std::swap(c.problem.seq_q, c.problem.seq_k);  // rows without keys
          c.strided = strided;
          arena->reset();
          InArena in(c, arena.get());
          const Reply reply = worker->run(std::vector{in.offset}, kRun);
          ASSERT_TRUE(reply.ok()) << name << ": " << reply.text;
          const check::Verdict v = in.verdict();
          EXPECT_TRUE(v.ok) << name << " " << c.name() << ": " << v.why;
        }
    check::Case c = small_case();
    c.problem.alibi = true;
    InArena in(c, arena.get());
    EXPECT_EQ(worker->run(std::vector{in.offset}, kRun).kind, Reply::Kind::refused);
    expect_no_other_threads(*worker);
  }
}

// It is stopped but for its requests, and none of them takes longer for that than it must.
TEST_F(WorkerProgramTest, StandsStillBetweenRequests) {
  const auto worker = start_program(compile("watches"));
  ASSERT_TRUE(worker->load_program(kLoad).ok());
  InArena in(small_case(), arena.get());
  ASSERT_TRUE(worker->run(std::vector{in.offset}, kRun).ok());
  const auto state = [&] {
    const std::string status = read_file(fmt::format("/proc/{}/status", worker->pid()));
    return status.substr(status.find("State:") + 7, 1);
  };
  EXPECT_EQ(state(), "T");
  const double before = worker->cpu_seconds();
  usleep(20'000);
  EXPECT_EQ(worker->cpu_seconds(), before);  // one of its threads never stops by itself
  ASSERT_TRUE(worker->run({}, kRun).ok());
  EXPECT_EQ(state(), "T");
}

TEST_F(WorkerProgramTest, HearsOfACallWhenTheOneBeforeIsDone) {
  InArena first(small_case(), arena.get()), second(small_case(DType::f16), arena.get());
  const std::vector<int64_t> calls = {first.offset, program::kNoCall, second.offset};
  const auto naive = start_program(compile("honest_naive"));
  EXPECT_TRUE(naive->run_each(std::vector(2, program::kNoCall), kRun).ok());  // needs no program
  ASSERT_TRUE(naive->load_program(kLoad).ok());
  std::vector<size_t> done;
  const Reply reply = naive->run_each(calls, kRun, [&](size_t n) { done.push_back(n); });
  EXPECT_TRUE(reply.ok()) << reply.text;
  EXPECT_EQ(done, (std::vector<size_t>{0, 1, 2}));
  EXPECT_TRUE(first.verdict().ok);
  EXPECT_TRUE(second.verdict().ok);
  const std::vector<int64_t> bad = {arena->size(), first.offset};  // what fails is the last
  EXPECT_EQ(naive->run_each(bad, kRun).kind, Reply::Kind::refused);
  EXPECT_TRUE(naive->run_each(calls, kRun).ok());

  const auto ahead = start_program(compile("reads_ahead"));
  ASSERT_TRUE(ahead->load_program(kLoad).ok());
  const Reply nothing = ahead->run_each(calls, 0.3);  // there is nothing yet to be read
  EXPECT_EQ(nothing.kind, Reply::Kind::timeout) << nothing.text;
}

// The executable has none of the library's code: a program that looks for a kernel finds none.
TEST_F(WorkerProgramTest, HasNoKernelsInItsProcess) {
  const std::string worker =
      read_file(fs::path(tool_path()).replace_filename("attune-program-worker"));
  ASSERT_FALSE(worker.empty());
  for (const char* word : {"fused_forward", "reference_forward", "libattune", "nlohmann"})
    EXPECT_EQ(worker.find(word), std::string::npos) << word;
}

struct Hostile {
  const char* name;
  Reply::Kind kind;
  const char* text;
  bool needs_filter = false;
};

void PrintTo(const Hostile& h, std::ostream* out) { *out << h.name; }

class WorkerHostileTest : public WorkerProgramTest, public testing::WithParamInterface<Hostile> {};

TEST_P(WorkerHostileTest, EndsAsAValue) {
  const Hostile& hostile = GetParam();
  const SandboxReport sandbox = sandbox_report();
  if (hostile.needs_filter && !sandbox.seccomp) GTEST_SKIP() << sandbox.why_not;
  if (sandbox.landlock == 0 && std::string_view(hostile.name) == "reads_a_file_when_loaded")
    GTEST_SKIP() << "this kernel has no Landlock";
  if (kSanitizer && std::string_view(hostile.name) == "eats_memory")
    GTEST_SKIP() << "a sanitizer's runtime does not live with a limit of memory";
  const fs::path target = scratch() / "left_behind";
  const std::string library =
      compile(hostile.name, fmt::format("-DTARGET='\"{}\"'", target.string()));
  InArena in(small_case(), arena.get());
  pid_t pid = -1;
  {
    WorkerOptions options;
    options.memory_bytes = int64_t{256} << 20;
    const auto worker = start_program(library, options);
    pid = worker->pid();
    const Reply loaded = worker->load_program(kLoad);
    ASSERT_TRUE(loaded.ok()) << loaded.text;
    const bool hangs = hostile.kind == Reply::Kind::timeout;
    const Reply reply = worker->run(std::vector{in.offset}, hangs ? 0.3 : kRun);
    EXPECT_EQ(reply.kind, hostile.kind) << reply.text;
    EXPECT_NE(reply.text.find(hostile.text), std::string::npos) << reply.text;
    EXPECT_GT(reply.seconds, 0);
    const bool lives = hostile.kind == Reply::Kind::ok || hostile.kind == Reply::Kind::refused;
    EXPECT_EQ(worker->alive(), lives);
    // Whatever came, a request has an answer.
    const Reply again = worker->run(std::vector{in.offset}, kRun);
    EXPECT_EQ(again.kind, lives ? hostile.kind : Reply::Kind::exited) << again.text;
  }
  expect_nothing_left(pid);
  EXPECT_FALSE(fs::exists(fs::symlink_status(target)));
  expect_a_new_worker_works();
}

INSTANTIATE_TEST_SUITE_P(
    All, WorkerHostileTest,
    testing::Values(Hostile{"endless_loop", Reply::Kind::timeout, "killed after 0.3 s"},
                    Hostile{"segfault", Reply::Kind::crashed, "SIGSEGV"},
                    Hostile{"abort", Reply::Kind::crashed, "SIGABRT"},
                    Hostile{"stack_overflow", Reply::Kind::crashed, "SIGSEGV"},
                    Hostile{"exit_zero", Reply::Kind::exited, "exit status 0"},
                    Hostile{"throws_exception", Reply::Kind::refused, "an exception"},
                    Hostile{"eats_memory", Reply::Kind::refused, "returned 12"},
                    Hostile{"prints_a_lot", Reply::Kind::ok, ""},
                    Hostile{"forged_reply", Reply::Kind::garbage, "not the reply"},
                    Hostile{"closes_everything", Reply::Kind::garbage, "closed the channel"},
                    Hostile{"shrinks_arena", Reply::Kind::refused, "returned 2"},
                    Hostile{"writes_inputs", Reply::Kind::crashed, "SIGSEGV: it used memory"},
                    Hostile{"makes_inputs_writable", Reply::Kind::refused, "returned 1"},
                    Hostile{"removes_pages", Reply::Kind::crashed, "SIGSYS", true},
                    Hostile{"makes_code", Reply::Kind::refused, "returned 1", true},
                    Hostile{"reads_a_file_when_loaded", Reply::Kind::refused, "returned 1", true},
                    Hostile{"writes_a_file", Reply::Kind::ok, "", true},
                    Hostile{"reads_parent", Reply::Kind::ok, "", true},
                    Hostile{"opens_socket", Reply::Kind::crashed, "SIGSYS", true},
                    Hostile{"forks", Reply::Kind::crashed, "SIGSYS", true},
                    Hostile{"starts_thread", Reply::Kind::crashed, "SIGSYS", true},
                    Hostile{"kills_parent", Reply::Kind::crashed, "SIGSYS", true}),
    [](const auto& it) { return std::string(it.param.name); });

// ---- Ends ----

TEST_F(WorkerProgramTest, DiesWithItsOwner) {
  const auto worker = start();
  const pid_t pid = worker->pid();
  EXPECT_GT(pid, 0);
  {
    auto gone = start();
    ASSERT_TRUE(gone->load_config("naive", kLoad).ok());
  }
  EXPECT_EQ(kill(pid, 0), 0);  // the other one is not touched
}

// The parent is killed while its candidate loops for ever.
TEST_F(WorkerProgramTest, DiesWithAKilledParent) {
  const std::string library = compile("endless_loop");
  InArena in(small_case(), arena.get());
  Fd read_end, write_end;
  ASSERT_TRUE(make_pipe(&read_end, &write_end).ok());
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const auto worker = start_program(library);
    if (!worker || !worker->load_program(kLoad).ok()) _exit(1);
    const pid_t pid = worker->pid();
    if (write(write_end.get(), &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    worker->run(std::vector{in.offset}, 60);
    _exit(0);
  }
  write_end.reset();
  pid_t pid = -1;
  ASSERT_EQ(read(read_end.get(), &pid, sizeof(pid)), ssize_t(sizeof(pid)));
  kill(parent, SIGKILL);
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  const auto runs = [&] {  // a dead one that init has not buried yet does not count
    const std::string status = read_file(fmt::format("/proc/{}/status", pid));
    return !status.empty() && status.find("\nState:\tZ") == std::string::npos;
  };
  for (int n = 0; n < 500 && runs(); ++n) usleep(10'000);
  EXPECT_FALSE(runs());
}

TEST_F(WorkerTest, WorksWithoutASandboxToo) {
  InArena in(small_case(), arena.get());
  WorkerOptions options;
  options.sandbox = false;
  const auto worker = start(options);
  const Reply loaded = worker->load_config(fused_config(), kLoad);
  ASSERT_TRUE(loaded.ok()) << loaded.text;
  EXPECT_EQ(loaded.text, "");
  EXPECT_TRUE(worker->run(std::vector{in.offset}, kRun).ok());
  EXPECT_TRUE(in.verdict().ok);
}

// What a system lacks is said, by the report and by the reply to a load.
TEST_F(WorkerTest, SaysWhatTheSandboxLacks) {
  const SandboxReport report = sandbox_report();
  EXPECT_EQ(report.seccomp && report.namespaces, report.why_not.empty()) << report.why_not;
  const Reply loaded = start()->load_config("naive", kLoad);
  ASSERT_TRUE(loaded.ok()) << loaded.text;
  EXPECT_EQ(loaded.text.empty(), report.why_not.empty()) << loaded.text << report.why_not;

  SandboxReport none;
  none.why_not = "seccomp: no";
  EXPECT_TRUE(sandbox_gaps(none).starts_with("seccomp: no; Landlock: not in this kernel"));
  EXPECT_NE(sandbox_gaps({true, true, 3, ""}).find("network"), std::string::npos);
  EXPECT_EQ(sandbox_gaps({true, true, 7, ""}), "");
}

// ---- What the process of a CUDA program says ----

// It answers every request with this status and text.
std::unique_ptr<Worker> parrot(const Arena& arena, bool ok, const std::string& text) {
  const fs::path tool = scratch() / "parrot.sh";
  std::ofstream(tool) << fmt::format(
      "#!/bin/sh\n"
      "while read -r line; do\n"
      "  nonce=${{line#*'\"nonce\":\"'}}\n"
      "  printf '{{\"nonce\":\"%s\",\"ok\":{},\"text\":\"%s\"}}\\n' \"${{nonce%%'\"'*}}\" '{}' "
      ">&{}\n"
      "done\n",
      ok, text, program::kReplyFd);
  fs::permissions(tool, fs::perms::owner_all);
  WorkerOptions o;
  o.tool = tool;
  o.cuda = true;
  o.sandbox = false;
  std::unique_ptr<Worker> worker;
  const Status started = Worker::start(o, arena, &worker);
  EXPECT_TRUE(started.ok()) << started.message;
  return worker;
}

TEST(Worker, WordsOfACudaProgramAreNotPassedOn) {
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(1 << 20, &arena).ok());
  const struct {
    const char *said, *heard;
  } kRefusals[] = {
      {"attune-secret", "it refused, in words that are not passed on"},
      {"an exception: attune-secret", "an exception left it"},
      {"attune_candidate returned 7", "attune_candidate returned 7"},
      {"attune_candidate returned 7 attune-secret", "attune_candidate returned "},
      {"it does not define attune-secret", "it does not define attune_candidate"},
      {"attune-secret: CUDA_ERROR_ILLEGAL_ADDRESS (attune-secret)",
       "the device reports CUDA_ERROR_ILLEGAL_ADDRESS"},
      {"x: CUDA_ERROR_SECRET (y)", "it refused, in words that are not passed on"},
  };
  for (const auto& [said, heard] : kRefusals) {
    const auto worker = parrot(*arena, false, said);
    const Reply loaded = worker->load_library("x.so", "", kLoad);
    EXPECT_EQ(loaded.kind, Reply::Kind::refused);
    EXPECT_EQ(loaded.text, heard);
    EXPECT_EQ(worker->run_at_once({}, kRun).text, heard);
    EXPECT_EQ(worker->synchronize(kRun).text, heard);
  }
  const struct {
    const char *said, *heard;
  } kAnswers[] = {{"4096", "4096"}, {"0", "0"}, {"attune-secret", ""}, {"12 attune-secret", ""}};
  for (const auto& [said, heard] : kAnswers) {
    const auto worker = parrot(*arena, true, said);
    EXPECT_TRUE(worker->load_library("x.so", "", kLoad).ok());
    EXPECT_EQ(worker->reserved_cache(kRun).text, heard);
  }
  // The library's own code is believed: its messages say what is wrong with a config.
  const auto trusted = parrot(*arena, false, "this config needs 3 stages");
  EXPECT_EQ(trusted->load_on_device("x", "", kLoad).text, "this config needs 3 stages");
}

}  // namespace
}  // namespace attune::evolve
