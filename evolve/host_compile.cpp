#include "evolve/host_compile.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "evolve/candidate_text.hpp"
#include "evolve/process.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOutput = 256 << 10;  // of a compiler's complaints
constexpr rlim_t kMemory = rlim_t{4} << 30;
constexpr rlim_t kFileBytes = rlim_t{256} << 20;

struct Run {
  Status start;  // of the process
  bool timeout = false, stopped = false;
  int status = -1;  // as of waitpid
  std::string output;

  bool ok() const {
    return start.ok() && !timeout && !stopped && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

// stdout and stderr together, killed at the limit.
Run run_program(Spawn what, double limit_seconds, const Stop& stop = {}) {
  Run run;
  Fd read_end, write_end;
  if (run.start = make_pipe(&read_end, &write_end); !run.start.ok()) return run;
  what.descriptors = {-1, write_end.get(), write_end.get()};
  pid_t pid = -1;
  if (run.start = spawn(what, &pid); !run.start.ok()) return run;
  write_end.reset();
  const double deadline = monotonic_seconds() + limit_seconds;
  for (;;) {
    const double left = deadline - monotonic_seconds();
    pollfd ready{read_end.get(), POLLIN, 0};
    const int n = poll(&ready, 1, int(std::clamp(std::ceil(left * 1e3), 0.0, 100.0)));
    if (n > 0) {
      char buffer[4096];
      const ssize_t got = read(read_end.get(), buffer, sizeof(buffer));
      if (got == 0) break;
      if (got > 0 && run.output.size() < kMostOutput) run.output.append(buffer, size_t(got));
    }
    run.stopped = stop && stop();
    run.timeout = left <= 0;
    if (run.stopped || run.timeout) break;
  }
  run.timeout |= !run.stopped && !ended_by(pid, deadline);
  run.status = kill_group(pid);
  return run;
}

std::vector<std::string> compiler_environment() {
  std::vector<std::string> environment = {"LC_ALL=C"};
  inherit("PATH", &environment);  // where it finds its assembler
  inherit("HOME", &environment);
  inherit("LD_LIBRARY_PATH", &environment);
  return environment;
}

std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code error;
    if (access(file.c_str(), X_OK) == 0 && !fs::is_directory(file, error)) return file;
  }
  return "";
}

HostCompiler find_compiler() {
  HostCompiler found;
  for (const char* name : {"c++", "g++", "clang++"}) {
    const std::string path = find_in_path(name);
    if (path.empty()) continue;
    const Run run =
        run_program({path, {"--version"}, compiler_environment(), "", {}, {}, true}, 10);
    if (!run.ok()) {
      found.why_not = fmt::format("{} --version fails", path);
      continue;
    }
    return {path, run.output.substr(0, run.output.find('\n')), ""};
  }
  if (found.why_not.empty()) found.why_not = "none of c++, g++ and clang++ is on the PATH";
  return found;
}

bool write_file(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), std::streamsize(text.size()));
  return bool(file.flush());
}

std::string hash_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  return jit::hex(jit::sha256(bytes));
}

// The first lines that say what is wrong, or the first of all.
std::string first_errors(const std::string& output) {
  constexpr size_t kLines = 8, kCharacters = 1500;
  std::string errors, all;
  size_t lines = 0;
  std::istringstream text(output);
  for (std::string line; std::getline(text, line) && lines < kLines;) {
    const bool error = line.find("error") != std::string::npos ||
                       line.find("undefined reference") != std::string::npos ||
                       line.find("undefined symbol") != std::string::npos;
    if (error) {
      errors += line + "\n";
      ++lines;
    }
    if (all.size() < kCharacters) all += line + "\n";
  }
  std::string why = (errors.empty() ? all : errors).substr(0, kCharacters);
  while (!why.empty() && why.back() == '\n') why.pop_back();
  return why.empty() ? "the compiler failed without a word" : why;
}

// The same code gives the same bytes, whatever its comments and wherever it lies: names are fixed,
// and neither paths nor line numbers enter the object.
std::vector<std::string> arguments(const Unit& unit) {
  std::vector<std::string> all = {"-std=c++20",
                                  "-O3",
                                  "-DNDEBUG",
                                  "-shared",
                                  "-fPIC",
                                  "-fvisibility=hidden",
                                  "-pipe",
                                  "-fno-semantic-interposition",
                                  "-I.",
                                  "candidate.cpp",
                                  "-o",
                                  "candidate.so",
                                  "-s",
                                  "-Wl,-Bsymbolic",
                                  "-Wl,-z,defs",
                                  "-Wl,-z,now",
                                  "-Wl,--build-id=none",
                                  "-Wl,--as-needed",
                                  "-Wl,--hash-style=both"};  // DT_HASH counts the symbols
  all.insert(all.begin(), unit.flags.begin(), unit.flags.end());
  return all;
}

// A folder that no other build uses, until it gets its name.
fs::path working_folder(const std::string& folder, const std::string& name) {
  static std::atomic<int> count{0};
  return fs::path(folder) / fmt::format("{}.{}.{}.tmp", name, getpid(), count++);
}

Status write_inputs(const fs::path& work, const Unit& unit) {
  std::error_code error;
  fs::create_directories(work / "tmp", error);
  bool written = write_file(work / "candidate.cpp", unit.source);
  for (const auto& [path, text] : unit.files) {
    fs::create_directories((work / path).parent_path(), error);
    written = written && write_file(work / path, text);
  }
  if (written) return {};
  return {ATTUNE_INTERNAL, fmt::format("cannot write into {}", work.string())};
}

Built failed(Built built, Verdict verdict, std::string why) {
  built.verdict = verdict;
  built.why = std::move(why);
  return built;
}

Built compile(const fs::path& work, const Unit& unit, const HostCompiler& compiler,
              double limit_seconds, const Stop& stop, Built built) {
  Spawn what;
  what.program = compiler.path;
  what.arguments = arguments(unit);
  what.environment = compiler_environment();
  std::error_code error;
  what.environment.push_back("TMPDIR=" + fs::absolute(work / "tmp", error).string());
  what.folder = work;
  what.limits = {{RLIMIT_CORE, 0},
                 {RLIMIT_CPU, rlim_t(std::max(0.0, limit_seconds)) + 2},
                 {RLIMIT_AS, kMemory},
                 {RLIMIT_FSIZE, kFileBytes}};
  what.starts_others = true;
  const Run run = run_program(what, limit_seconds, stop);
  if (!run.start.ok()) return failed(built, Verdict::compile_failed, run.start.message);
  if (run.stopped) return failed(built, Verdict::compile_timeout, "the compiler was stopped");
  if (run.timeout)
    return failed(built, Verdict::compile_timeout,
                  fmt::format("the compiler took more than {:.3g} s", limit_seconds));
  if (!run.ok()) return failed(built, Verdict::compile_failed, first_errors(run.output));

  const Links links = links_of(work / "candidate.so", unit.entry);
  if (!links.readable)
    return failed(built, Verdict::cheated, "its table of symbols cannot be read");
  if (!links.forbidden.empty())
    return failed(built, Verdict::cheated,
                  fmt::format("links {}", fmt::join(links.forbidden, ", ")).substr(0, 400));
  if (!links.defines.empty())
    return failed(built, Verdict::cheated,
                  fmt::format("defines {}", fmt::join(links.defines, ", ")).substr(0, 400));
  if (!links.entry)
    return failed(built, Verdict::compile_failed, "it does not define " + unit.entry);
  built.binary_hash = hash_of_file(work / "candidate.so");
  return built;
}

}  // namespace

const HostCompiler& host_compiler() {
  static const HostCompiler compiler = find_compiler();
  return compiler;
}

bool compiler_finds(const HostCompiler& compiler, const std::string& header,
                    const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {"-E", "-x", "c++", "/dev/null", "-o", "/dev/null"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.insert(arguments.end(), {"-include", header});
  return run_program({compiler.path, arguments, compiler_environment(), "", {}, {}, true}, 10).ok();
}

Built build_candidate(const std::string& source, const std::string& folder, double limit_seconds,
                      const Stop& stop) {
  return build({source,
                {{"evolve/candidate.h", candidate_header()}},
                {"-march=native", "-Ievolve"},
                "attune_candidate"},
               host_compiler(), folder, limit_seconds, stop);
}

Built build(const Unit& unit, const HostCompiler& compiler, const std::string& folder,
            double limit_seconds, const Stop& stop) {
  const double begin = monotonic_seconds();
  Built built;
  built.source_hash = jit::hex(jit::sha256(unit.source));
  if (compiler.path.empty()) return failed(built, Verdict::compile_failed, compiler.why_not);

  const std::string name = built.source_hash.substr(0, 16);
  const fs::path work = working_folder(folder, name), final = fs::path(folder) / name;
  if (const Status status = write_inputs(work, unit); !status.ok()) {
    built = failed(built, Verdict::compile_failed, status.message);
  } else {
    built = compile(work, unit, compiler, limit_seconds, stop, built);
  }
  std::error_code error;
  if (built.verdict == Verdict::ok) {
    fs::create_directories(final, error);
    for (const char* file : {"candidate.cpp", "candidate.so"})
      if (!error) fs::rename(work / file, final / file, error);
    if (error)
      built = failed(built, Verdict::compile_failed,
                     fmt::format("cannot write {}: {}", final.string(), error.message()));
    else
      built.library = fs::absolute(final / "candidate.so", error);
  }
  fs::remove_all(work, error);
  built.seconds = monotonic_seconds() - begin;
  return built;
}

}  // namespace attune::evolve
