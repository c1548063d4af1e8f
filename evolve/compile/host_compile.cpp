#include "evolve/compile/host_compile.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "evolve/compile/candidate_text.hpp"
#include "evolve/compile/compiler_text.hpp"
#include "evolve/compile/flags.hpp"
#include "evolve/worker/process.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

HostCompiler find_compiler() {
  HostCompiler found;
  for (const char* name : {"c++", "g++", "clang++"}) {
    const std::string path = find_in_path(name);
    if (path.empty()) continue;
    const HostCompiler compiler = compiler_at(path);
    if (compiler.why_not.empty()) return compiler;
    found.why_not = compiler.why_not;
  }
  if (found.why_not.empty()) found.why_not = "none of c++, g++ and clang++ is on the PATH";
  return found;
}

bool write_file(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), std::streamsize(text.size()));
  return bool(file.flush());
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string hash_of_file(const fs::path& path) { return jit::hex(jit::sha256(contents(path))); }

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
                                  "-Wl,--hash-style=both"};           // DT_HASH counts the symbols
  all.insert(all.begin() + 2, unit.flags.begin(), unit.flags.end());  // a later -O counts
  return all;
}

// The first half of it: the program's assembly, which no assembler has read yet.
std::vector<std::string> assembly_arguments(const Unit& unit) {
  std::vector<std::string> all = arguments(unit);
  *std::find(all.begin(), all.end(), "candidate.so") = "candidate.s";
  std::erase_if(all, [](const std::string& a) { return a.starts_with("-Wl,"); });
  for (const char* linking : {"-shared", "-s"}) std::erase(all, linking);
  all.push_back("-S");
  return all;
}

// A folder that no other build uses, until it gets its name.
fs::path working_folder(const std::string& folder, const std::string& name) {
  static std::atomic<int> count{0};
  return fs::path(folder) / fmt::format("{}.{}.{}.tmp", name, getpid(), count++);
}

Status write_inputs(const fs::path& work, const Unit& unit) {
  std::error_code error;
  fs::create_directories(work, error);
  bool written = write_file(work / "candidate.cpp", unit.source);
  for (const auto& [path, text] : unit.files) {
    fs::create_directories((work / path).parent_path(), error);
    written = written && write_file(work / path, text);
  }
  if (written) return {};
  return {ATTUNE_INTERNAL, fmt::format("cannot write into {}", work.string())};
}

Built compile(const fs::path& work, const Unit& unit, const HostCompiler& compiler,
              double limit_seconds, const Stop& stop, Built built) {
  std::vector<std::string> own = {"candidate.cpp"};
  for (const auto& [path, text] : unit.files) own.push_back(path);
  std::vector<std::string> all = arguments(unit);
  const double begin = monotonic_seconds();
  if (unit.stranger) {
    const CompilerRun half =
        run_compiler(compiler, assembly_arguments(unit), work, limit_seconds, stop);
    if (!half.ok()) return failed_run(built, half, compiler, own, work, limit_seconds);
    const std::string file = assembly_asks_for_files(contents(work / "candidate.s"));
    if (!file.empty())
      return failed(built, Verdict::cheated,
                    "its assembly asks for a file that is not its own: " + file);
    *std::find(all.begin(), all.end(), "candidate.cpp") = "candidate.s";
  }
  const double left = limit_seconds - (monotonic_seconds() - begin);
  const CompilerRun run = run_compiler(compiler, all, work, left, stop);
  if (!run.ok()) return failed_run(built, run, compiler, own, work, limit_seconds);

  const Links links = links_of(work / "candidate.so", unit.entry);
  if (!links.readable)
    return failed(built, Verdict::cheated, "its table of symbols cannot be read");
  if (!links.forbidden.empty())
    return failed(built, Verdict::cheated,
                  printable(fmt::format("links {}", fmt::join(links.forbidden, ", ")), 400));
  if (!links.defines.empty())
    return failed(built, Verdict::cheated,
                  printable(fmt::format("defines {}", fmt::join(links.defines, ", ")), 400));
  if (!links.entry) return failed(built, Verdict::compile_failed, unit.no_entry);
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
  return ask_compiler(compiler.path, arguments).ok();
}

Built failed(Built built, Verdict verdict, std::string why) {
  built.verdict = verdict;
  built.why = std::move(why);
  return built;
}

Built failed_run(Built built, const CompilerRun& run, const HostCompiler& compiler,
                 const std::vector<std::string>& own, const std::string& folder,
                 double limit_seconds) {
  if (!run.start.ok()) return failed(built, Verdict::compile_failed, run.start.message);
  if (run.stopped) return failed(built, Verdict::compile_timeout, "the compiler was stopped");
  if (run.timeout)
    return failed(built, Verdict::compile_timeout,
                  fmt::format("the compiler took more than {:.3g} s", limit_seconds));
  return failed(built, Verdict::compile_failed, own_errors(run.output, own, compiler, folder));
}

Built build_candidate(const std::string& source, const std::string& folder, double limit_seconds,
                      const Stop& stop) {
  Built built;
  built.source_hash = jit::hex(jit::sha256(source));
  built.contract = contract_of(source);
  if (const std::string file = asks_for_files(source); !file.empty())
    return failed(built, Verdict::cheated, "asks for a file that is not its own: " + file);
  std::string refused;
  std::vector<std::string> flags = flags_of(source, Language::cpp, &refused);
  if (!refused.empty())
    return failed(built, Verdict::invalid, fmt::format("attune-flags: {} is not allowed", refused));
  flags.insert(flags.begin(), "-march=native");
  Unit unit{with_adapter(source, built.contract),
            {{"candidate.h", candidate_header()}},
            std::move(flags),
            built.contract == Contract::backward ? "attune_candidate_backward" : "attune_candidate",
            no_entry_text(Language::cpp),
            true};
  if (built.contract == Contract::run_attention)
    unit.files.emplace_back(kAdapterFile, adapter_text(Language::cpp));
  Built made = build(unit, host_compiler(), folder, limit_seconds, stop);
  made.source_hash = built.source_hash;
  made.contract = built.contract;
  return made;
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
