#include "evolve/host_compile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "evolve/candidate_text.hpp"
#include "src/jit/sha256.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr double kLimit = 60;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class HostCompile : public testing::Test {
 protected:
  void SetUp() override {
    if (host_compiler().path.empty()) GTEST_SKIP() << host_compiler().why_not;
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  Built build(const std::string& includes, const std::string& body, double limit = kLimit,
              const Stop& stop = {}) {
    return build_candidate(
        fmt::format("{}\n#include \"evolve/candidate.h\"\n"
                    "int attune_candidate(const attune_candidate_call* c) {{ {} }}\n",
                    includes, body),
        folder, limit, stop);
  }

  fs::path folder = fs::temp_directory_path() / fmt::format("attune_compile_test.{}", getpid());
};

TEST(CandidateHeader, TextIsTheFile) {
  EXPECT_EQ(candidate_header(), read_file(source_dir() + "/evolve/candidate.h"));
}

TEST_F(HostCompile, MakesALibraryAndNamesIt) {
  EXPECT_FALSE(host_compiler().version.empty());
  const Built built = build("", "return c->dtype;");
  ASSERT_EQ(built.verdict, Verdict::ok) << built.why;
  EXPECT_TRUE(fs::exists(built.library));
  EXPECT_TRUE(fs::path(built.library).is_absolute());
  EXPECT_EQ(built.source_hash.size(), 64u);
  EXPECT_EQ(built.binary_hash, jit::hex(jit::sha256(read_file(built.library))));
  EXPECT_GT(built.seconds, 0);
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().extension(), "") << "left over: " << entry.path();
}

// A mutation that only changes words is no new program.
TEST_F(HostCompile, BinaryHashSeesTheCodeAlone) {
  const Built plain = build("", "return c->dtype;");
  const Built comment = build("// faster\n\n", "return /* now */ c->dtype;");
  const Built other = build("", "return c->dtype + 1;");
  ASSERT_EQ(plain.verdict, Verdict::ok) << plain.why;
  EXPECT_NE(plain.source_hash, comment.source_hash);
  EXPECT_EQ(plain.binary_hash, comment.binary_hash);
  EXPECT_NE(plain.binary_hash, other.binary_hash);
}

TEST_F(HostCompile, SaysWhatTheCompilerSays) {
  const Built broken = build("", "return no_such_thing;");
  EXPECT_EQ(broken.verdict, Verdict::compile_failed);
  EXPECT_NE(broken.why.find("candidate.cpp:3"), std::string::npos) << broken.why;
  EXPECT_NE(broken.why.find("no_such_thing"), std::string::npos) << broken.why;
  EXPECT_EQ(broken.library, "");

  const Built missing = build("extern \"C\" int elsewhere();", "return elsewhere();");
  EXPECT_EQ(missing.verdict, Verdict::compile_failed);
  EXPECT_NE(missing.why.find("elsewhere"), std::string::npos) << missing.why;

  const Built empty = build_candidate("int x;", folder, kLimit);
  EXPECT_EQ(empty.verdict, Verdict::compile_failed);
  EXPECT_NE(empty.why.find("attune_candidate"), std::string::npos) << empty.why;

  EXPECT_EQ(build_candidate("int x;", "/proc/nowhere", kLimit).verdict, Verdict::compile_failed);
}

constexpr const char* kEndless =
    "template <long D, long I> struct Tree { Tree<D + 1, 2 * I> a; Tree<D + 1, 2 * I + 1> b; };\n"
    "template <long I> struct Tree<40, I> {};";

TEST_F(HostCompile, StopsACompilerThatDoesNotEnd) {
  const Built built = build(kEndless, "return sizeof(Tree<0, 1>);", 0.5);
  EXPECT_EQ(built.verdict, Verdict::compile_timeout) << built.why;
  EXPECT_LT(built.seconds, 30);
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(HostCompile, StopsWhenAsked) {
  const auto begin = std::chrono::steady_clock::now();
  const Built built = build(kEndless, "return sizeof(Tree<0, 1>);", kLimit, [&] {
    return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(200);
  });
  EXPECT_EQ(built.verdict, Verdict::compile_timeout);
  EXPECT_NE(built.why.find("stopped"), std::string::npos) << built.why;
  EXPECT_LT(built.seconds, 20);
  EXPECT_TRUE(fs::is_empty(folder));
}

// How many processes work in the folder; -1: that cannot be seen.
int processes_in(const fs::path& folder) {
  const std::string prefix = fs::canonical(folder).string() + "/";
  std::error_code error;
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc", error))
    count += fs::read_symlink(entry.path() / "cwd", error).string().starts_with(prefix) ? 1 : 0;
  return count;
}

// kill -9 of this process takes along the compiler, and what the compiler had started.
TEST_F(HostCompile, DiesWithItsParent) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that starts after a fork of many threads";
#endif
  const pid_t child = fork();
  if (child == 0) {
    build(kEndless, "return sizeof(Tree<0, 1>);");
    _exit(1);
  }
  const auto wait_for = [&](auto what) {
    for (int n = 0; n < 3000 && !what(); ++n)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return what();
  };
  // The driver, and the compiler proper.
  EXPECT_TRUE(wait_for([&] { return processes_in(folder) >= 2; }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(wait_for([&] { return processes_in(folder) == 0; })) << "a compiler goes on";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(HostCompile, AllowsArithmeticMemoryAndContainers) {
  const Built built = build(
      "#include <cmath>\n#include <cstring>\n#include <iostream>\n#include <map>\n"
      "#include <mutex>\n#include <stdexcept>\n#include <string>\n#include <unordered_map>\n"
      "#include <vector>\n#include \"candidate.h\"\n"
      "thread_local std::vector<float> scratch;\nstd::mutex lock;\n",
      "std::lock_guard guard(lock);\n"
      "static std::map<std::string, float> names;\nstd::unordered_map<int, float> sums;\n"
      "scratch.resize(size_t(c->dim));\n"
      "for (float& x : scratch) x = std::exp(x) + std::tanh(c->scale) + exp2f(x) + logf(x);\n"
      "names[std::to_string(c->dim)] = sums[int(c->dim)] = scratch.at(3);\n"
      "if (names.size() > 5) throw std::runtime_error(\"five\");\n"
      "try { new float[size_t(c->dim)]; } catch (const std::bad_alloc&) { return 1; }\n"
      "std::memset(c->out, 0, 4);\nreturn 0;");
  EXPECT_EQ(built.verdict, Verdict::ok) << built.why;
}

TEST_F(HostCompile, RefusesWhatReachesBeyondArithmetic) {
  const struct {
    const char *includes, *body, *symbol;
  } kCheats[] = {
      {"#include <cstdlib>", "return system(\"true\");", "system"},
      {"#include <cstdio>", "return fopen(\"x\", \"w\") != nullptr;", "fopen"},
      {"#include <dlfcn.h>", "return dlopen(\"x\", 1) != nullptr;", "dlopen"},
      {"#include <thread>", "std::thread([] {}).detach(); return 0;", "thread"},
      {"#include <unistd.h>\n#include <sys/mman.h>\n#include <sys/socket.h>\n#include <time.h>",
       "timespec t; clock_gettime(CLOCK_MONOTONIC, &t); mprotect(nullptr, 1, 7);\n"
       "return int(syscall(1)) + fork() + socket(1, 1, 1);",
       "clock_gettime"},
  };
  for (const auto& cheat : kCheats) {
    const Built built = build(cheat.includes, cheat.body);
    EXPECT_EQ(built.verdict, Verdict::cheated) << cheat.symbol << ": " << built.why;
    EXPECT_NE(built.why.find("links "), std::string::npos) << built.why;
    EXPECT_NE(built.why.find(cheat.symbol), std::string::npos) << built.why;
    EXPECT_EQ(built.library, "");
  }
}

TEST_F(HostCompile, ReadsLinksOfAnyObject) {
  EXPECT_FALSE(links_of(source_dir() + "/evolve/candidate.h").readable);
  EXPECT_FALSE(links_of("/nonexistent").readable);
  const fs::path source = folder / "x.cpp", library = folder / "x.so";
  std::ofstream(source) << "extern \"C\" int attune_candidate(const void*) { return 0; }\n";
  const std::string command =
      fmt::format("'{}' -shared -fPIC -Wl,--hash-style=both -Wl,--no-as-needed '{}' -ldl -o '{}'",
                  host_compiler().path, source.string(), library.string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  const Links links = links_of(library);
  EXPECT_TRUE(links.readable);
  EXPECT_TRUE(links.entry);
  // Where the C library has all of dl in itself, the linker may still name it.
  for (const std::string& name : links.forbidden) EXPECT_EQ(name, "libdl.so.2");

  // A file cut short is never read past its end.
  const std::string bytes = read_file(library);
  for (size_t size = 0; size < bytes.size(); size += 97) {
    std::ofstream(library, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), std::streamsize(size));
    links_of(library);
  }
}

}  // namespace
}  // namespace attune::evolve
