#include "evolve/compile/host_compile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "evolve/compile/candidate_text.hpp"
#include "evolve/compile/compiler_text.hpp"
#include "evolve/worker/process.hpp"
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
        fmt::format("{}\n#include \"candidate.h\"\n"
                    "int attune_candidate(const attune_candidate_call* c) {{ {} }}\n",
                    includes, body),
        folder, limit, stop);
  }

  fs::path folder = fs::temp_directory_path() / fmt::format("attune_compile_test.{}", getpid());
};

TEST(CandidateHeader, TextIsTheFile) {
  EXPECT_EQ(candidate_header(), read_file(source_dir() + "/evolve/compile/candidate.h"));
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

// ---- Files of others ----

// Two words of a secret, neither of which may be seen anywhere.
constexpr const char* kSecret = "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI\n";
bool tells(const std::string& text) {
  return text.find("AWS_SECRET") != text.npos || text.find("wJalr") != text.npos;
}

struct Asked {
  const char *name, *before, *body;  // {} is the path
};
constexpr Asked kAsked[] = {
    {"include", "#include \"{}\"\n", "return 0;"},
    {"include in a function", "", "return 0;\n#include \"{}\"\n"},
    {"include as a string", "const char* s =\n#include \"{}\"\n;", "return s[0];"},
    {"include as members", "enum E {{\n#include \"{}\"\n}};", "return int(E());"},
    {"include as a symbol", "extern \"C\" int\n#include \"{}\"\n;", "return 0;"},
    {"include by a macro", "#define P <{}>\n#include P\n", "return 0;"},
    {"import", "#import \"{}\"\n", "return 0;"},
    {"line", "#line 1 \"{}\"\n", "return no_such_thing;"},
    {"linemarker", "# 1 \"{}\" 1\n", "return no_such_thing;"},
    {"incbin", "asm(\".section .rodata\\n.incbin \\\"{}\\\"\\n.text\");", "return 0;"},
    {"assembler's include", "asm(\".include \\\"{}\\\"\");", "return 0;"},
    {"dependency", "#pragma GCC dependency \"{}\" AWS", "return 0;"},
    {"has_include", "#if __has_include(\"{}\")\n#error there it is\n#endif", "return 0;"},
};

class HostCompileSecret : public HostCompile {
 protected:
  void SetUp() override {
    HostCompile::SetUp();
    fs::create_directories(outside);
    std::ofstream(outside / "secret") << kSecret;
  }
  void TearDown() override {
    HostCompile::TearDown();
    fs::remove_all(outside);
  }

  std::string source(const Asked& asked) const {
    const std::string path = outside / "secret";
    return fmt::format(
        "{}\n#include \"candidate.h\"\n"
        "int attune_candidate(const attune_candidate_call*) {{ {} }}\n",
        fmt::format(fmt::runtime(asked.before), path), fmt::format(fmt::runtime(asked.body), path));
  }
  // Past the check of the text, as if it had been deceived.
  Built compile(const Asked& asked) const {
    return evolve::build(
        {source(asked), {{"candidate.h", candidate_header()}}, {}, "attune_candidate"},
        host_compiler(), folder, kLimit);
  }

  // In a process whose kernel has no Landlock, as far as it can tell. The text of what it returns.
  template <class Fn>
  static std::string without_landlock(const Fn& fn) {
    if (landlock_abi() == 0) return fn();
    Fd read_end, write_end;
    EXPECT_TRUE(make_pipe(&read_end, &write_end).ok());
    const pid_t child = fork();
    if (child == 0) {
      sock_filter code[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 444, 0, 1),  // landlock_create_ruleset
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
      sock_fprog program{4, code};
      if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
          prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(1);
      const std::string text = landlock_abi() == 0 ? fn() : "Landlock is still there";
      _exit(write(write_end.get(), text.data(), text.size()) == ssize_t(text.size()) ? 0 : 1);
    }
    write_end.reset();
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(read_end.get(), buffer, sizeof(buffer))) > 0;)
      text.append(buffer, size_t(n));
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return text;
  }

  fs::path outside = fs::temp_directory_path() / fmt::format("attune_secret_test.{}", getpid());
};

std::string told(const Built& built) {
  return fmt::format("{}: {}", verdict_name(built.verdict), built.why);
}

TEST_F(HostCompileSecret, IsNotAskedForInPlainText) {
  for (const Asked& asked : kAsked) {
    const Built built = build_candidate(source(asked), folder, kLimit);
    EXPECT_EQ(built.verdict, Verdict::cheated) << asked.name << ": " << built.why;
    EXPECT_FALSE(tells(built.why)) << asked.name << ": " << built.why;
    EXPECT_EQ(built.library, "");
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

// Text that is disguised is seen in the assembly.
TEST_F(HostCompileSecret, IsNotAskedForInAssembly) {
  const Asked kDisguised[] = {
      {"keyword by a macro", "#define PASTE(a, b) a##b\nPASTE(a, sm)(\".incbin \\\"{}\\\"\");",
       "return 0;"},
      {"directive by a macro",
       "asm(\".macro m a b\\n.\\\\a\\\\b \\\"{}\\\"\\n.endm\\nm inc bin\");", "return 0;"},
  };
  for (const Asked& asked : kDisguised) {
    ASSERT_EQ(asks_for_files(source(asked)), "") << asked.name;
    const Built built = build_candidate(source(asked), folder, kLimit);
    EXPECT_EQ(built.verdict, Verdict::cheated) << asked.name << ": " << built.why;
    EXPECT_NE(built.why.find("assembly"), std::string::npos) << built.why;
    EXPECT_FALSE(tells(built.why)) << asked.name << ": " << built.why;
  }
}

// A compiler that is deceived opens nothing.
TEST_F(HostCompileSecret, StaysClosedByLandlock) {
  if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  const std::set<std::string> kMustFail = {"include", "incbin", "import", "assembler's include"};
  for (const Asked& asked : kAsked) {
    const Built built = compile(asked);
    EXPECT_FALSE(tells(built.why)) << asked.name << ": " << built.why;
    EXPECT_EQ(built.why.find(outside.string()), std::string::npos) << built.why;
    EXPECT_FALSE(tells(read_file(built.library))) << asked.name;
    if (kMustFail.count(asked.name) != 0) {
      EXPECT_EQ(built.verdict, Verdict::compile_failed) << asked.name;
    }
  }
  for (const char* closed : {"/etc/passwd", "/proc/self/environ", "/dev/zero"}) {
    const Built built = evolve::build({fmt::format("#include \"{}\"\n", closed), {}, {}, "x"},
                                      host_compiler(), folder, kLimit);
    EXPECT_EQ(built.verdict, Verdict::compile_failed) << closed;
    EXPECT_NE(built.why.find("ermission denied"), std::string::npos) << closed << built.why;
  }
}

TEST_F(HostCompileSecret, DoesNotReachMessagesWithoutLandlock) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that starts after a fork of many threads";
#endif
  for (const Asked& asked : kAsked) {
    const std::string refused =
        without_landlock([&] { return told(build_candidate(source(asked), folder, kLimit)); });
    EXPECT_TRUE(refused.starts_with("cheated")) << asked.name << ": " << refused;
    EXPECT_FALSE(tells(refused)) << refused;
    if (std::string_view(asked.name) == "assembler's include") continue;  // it makes symbols
    const std::string compiled = without_landlock([&] { return told(compile(asked)); });
    EXPECT_FALSE(tells(compiled)) << asked.name << ": " << compiled;
    EXPECT_EQ(compiled.find(outside.string()), std::string::npos) << compiled;
  }
}

TEST_F(HostCompile, MessagesHaveNoCodesOfATerminal) {
  const Built built = build("#error \x1b[31mred\x07\x1b]0;title\x07", "return 0;");
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  EXPECT_EQ(built.why.find('\x1b'), std::string::npos);
  EXPECT_EQ(built.why.find('\x07'), std::string::npos);
  EXPECT_NE(built.why.find("red"), std::string::npos) << built.why;
}

// ---- Compilers in other places ----

class HostCompileElsewhere : public HostCompile {
 protected:
  // A program that is compiled by the compiler at this path.
  Built build_by(const fs::path& path) {
    const HostCompiler compiler = compiler_at(path);
    EXPECT_EQ(compiler.why_not, "");
    EXPECT_FALSE(compiler.version.empty());
    return evolve::build({"#include <vector>\n#include \"candidate.h\"\n"
                          "int attune_candidate(const attune_candidate_call* c) {\n"
                          "  return int(std::vector<int>(unsigned(c->dim)).size()); }\n",
                          {{"candidate.h", candidate_header()}},
                          {},
                          "attune_candidate"},
                         compiler, folder / "scratch", kLimit);
  }
  fs::path real() const { return fs::canonical(host_compiler().path); }
};

TEST_F(HostCompileElsewhere, ALinkWorks) {
  fs::create_directories(folder / "links/bin");
  fs::create_symlink(host_compiler().path, folder / "links/bin/c++");
  const Built built = build_by(folder / "links/bin/c++");
  EXPECT_EQ(built.verdict, Verdict::ok) << built.why;
}

// A program that is no part of the system, in a prefix of its own and in a bare folder.
TEST_F(HostCompileElsewhere, AScriptWorks) {
  for (const char* place : {"prefix/bin", "bare"}) {
    fs::create_directories(folder / place);
    const fs::path script = folder / place / "c++";
    std::ofstream(script) << "#!/bin/sh\nexec '" << host_compiler().path << "' \"$@\"\n";
    fs::permissions(script, fs::perms::owner_all);
    const Built built = build_by(script);
    EXPECT_EQ(built.verdict, Verdict::ok) << place << ": " << built.why;
  }
}

TEST_F(HostCompileElsewhere, ACopyWorks) {
  if (real().filename().string().find("ccache") != std::string::npos)
    GTEST_SKIP() << "the compiler is ccache";
  fs::create_directories(folder / "copy/bin");
  fs::copy_file(real(), folder / "copy/bin/g++");
  for (const char* part : {"lib", "lib64", "libexec"})  // it looks for its parts beside itself
    fs::create_directory_symlink(fs::path("/usr") / part, folder / "copy" / part);
  if (!ask_compiler(folder / "copy/bin/g++", {"-E", "-x", "c++", "/dev/null"}).ok())
    GTEST_SKIP() << "this compiler does not work from another place";
  const Built built = build_by(folder / "copy/bin/g++");
  EXPECT_EQ(built.verdict, Verdict::ok) << built.why;
}

TEST_F(HostCompileElsewhere, ACacheWorks) {
  const std::string ccache = find_in_path("ccache");
  if (ccache.empty()) GTEST_SKIP() << "there is no ccache";
  fs::create_directories(folder / "cache/bin");
  fs::create_symlink(ccache, folder / "cache/bin/g++");
  const Built built = build_by(folder / "cache/bin/g++");
  EXPECT_EQ(built.verdict, Verdict::ok) << built.why;
}

TEST_F(HostCompileElsewhere, HomesAreNeverOpenedWhole) {
  const char* home = std::getenv("HOME");
  if (home == nullptr) GTEST_SKIP() << "there is no HOME";
  EXPECT_TRUE(
      toolchain_folders({"/", "/tmp", "/etc", home, std::string(home) + "/.local", "/nonexistent"})
          .empty());
  EXPECT_TRUE(toolchain_folders({"/usr/lib", "/usr/../usr/bin"}).empty());  // open to all
  const std::string own = fs::canonical(folder);
  EXPECT_EQ(toolchain_folders({own, own + "/", own}), std::vector<std::string>{own});
  EXPECT_TRUE(is_of_toolchain(host_compiler(), "/usr/include/math.h"));
  EXPECT_FALSE(is_of_toolchain(host_compiler(), own + "/x"));
  EXPECT_FALSE(is_of_toolchain(host_compiler(), "/usr/../etc/passwd"));
  EXPECT_FALSE(is_of_toolchain(host_compiler(), "/usrs/x"));
}

// ---- Bombs ----

// What does not end is ended, and nothing of it goes on; what only grows meets its limit.
TEST_F(HostCompile, BombsEndAtTheLimit) {
  const struct {
    const char *name, *before, *body;
  } kBombs[] = {
      {"templates", kEndless, "return sizeof(Tree<0, 1>);"},
      {"includes itself twice", "#include \"candidate.cpp\"\n#include \"candidate.cpp\"",
       "return 0;"},
      {"constant loop",
       "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) "
       "for (long j = 0; j < 100000; ++j) s += j; return s; }\nconstexpr long k = f(100000);",
       "return int(k);"},
      {"long preprocessing",
       "#define A(x) x x x x x x x x x x x x x x x x\n#define B(x) A(A(A(A(x))))\n"
       "int v[] = { B(B(1,)) };",
       "return v[0];"},
  };
  for (const auto& bomb : kBombs) {
    const Built built = build(bomb.before, bomb.body, 0.5);
    EXPECT_TRUE(built.verdict == Verdict::compile_timeout ||
                built.verdict == Verdict::compile_failed)
        << bomb.name << ": " << told(built);
    for (int n = 0; n < 1000 && processes_in(folder) != 0; ++n)  // a killed one ends by itself
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(processes_in(folder), 0) << bomb.name;
    EXPECT_TRUE(fs::is_empty(folder)) << bomb.name;
    EXPECT_LE(built.why.size(), 1500u) << bomb.name;
  }
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
  EXPECT_FALSE(links_of(source_dir() + "/evolve/compile/candidate.h").readable);
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
