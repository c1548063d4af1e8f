#include "evolve/cuda_program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "evolve/candidate_text.hpp"
#include "evolve/process.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

HostCompiler find_nvcc() {
  std::vector<std::string> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string home = variable(name); !home.empty()) folders.push_back(home + "/bin");
  std::istringstream path(variable("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) folders.push_back(folder);
  folders.push_back("/usr/local/cuda/bin");
  for (const std::string& folder : folders)
    if (const std::string file = folder + "/nvcc"; access(file.c_str(), X_OK) == 0)
      return {file, "nvcc", ""};
  return {"", "", "a CUDA program needs nvcc, and there is none in CUDA_HOME or on the PATH"};
}

// Where libcudart lies, which is not where programs look by themselves.
std::vector<std::string> runtime_folders() {
  std::error_code error;
  const fs::path nvcc = fs::canonical(cuda_compiler().path, error);
  std::vector<std::string> found;
  for (const fs::path& home : {nvcc.parent_path().parent_path(), fs::path(variable("CUDA_HOME")),
                               fs::path(variable("CUDA_PATH")), fs::path("/usr/local/cuda")})
    for (const char* folder :
         {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"})
      if (!home.empty() && fs::exists(home / folder / "libcudart.so", error))
        found.push_back((home / folder).string());
  return found;
}

// What it asks for beyond the list of other programs and CUDA's run time: a vendor's kernels would
// come as a library, or be loaded by name.
std::vector<std::string> foreign_names(const Links& links) {
  std::vector<std::string> foreign;
  for (const std::string& name : links.forbidden)
    if (!name.starts_with("libcudart.so") && !name.starts_with("cuda") &&
        !name.starts_with("__cuda"))
      foreign.push_back(name);
  return foreign;
}

Built failed(Built built, Verdict verdict, std::string why) {
  built.verdict = verdict;
  built.why = std::move(why);
  return built;
}

Built compile(const std::string& source, int cc, const fs::path& work, double limit_seconds,
              const Stop& stop, Built built) {
  std::ofstream(work / "candidate.cu") << source;
  std::ofstream(work / "candidate.h") << candidate_header();
  const Fd log(open((work / "log").c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  Spawn what;
  what.program = cuda_compiler().path;
  what.arguments = {
      "-std=c++20",
      "-O3",
      "-shared",
      "-Xcompiler",
      "-fPIC,-fvisibility=hidden",
      fmt::format("-arch=sm_{}{}", cc, cc == 90 ? "a" : ""),
      "-I.",
      "candidate.cu",
      "-o",
      "candidate.so",
      "-Xlinker",
      "--hash-style=both",
      "-Xlinker",
      "-s",  // the name of a passing file is in the symbols: equal sources, equal binaries
      "-cudart=shared"};
  for (const std::string& folder : runtime_folders())
    for (const std::string& word : {std::string("-Xlinker"), "-rpath," + folder})
      what.arguments.push_back(word);
  for (const char* name : {"PATH", "HOME", "LD_LIBRARY_PATH"}) inherit(name, &what.environment);
  what.environment.push_back("TMPDIR=" + work.string());
  what.folder = work;
  what.descriptors = {-1, log.get(), log.get()};
  what.starts_others = true;
  pid_t pid = -1;
  if (const Status s = spawn(what, &pid); !s.ok())
    return failed(built, Verdict::compile_failed, s.message);
  const double deadline = monotonic_seconds() + limit_seconds;
  bool ended = false;
  while (!ended && monotonic_seconds() < deadline && !(stop && stop()))
    ended = ended_by(pid, std::min(deadline, monotonic_seconds() + 0.1));
  const int status = kill_group(pid);
  if (!ended)
    return failed(built, Verdict::compile_timeout,
                  fmt::format("nvcc took more than {:.3g} s", limit_seconds));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return failed(built, Verdict::compile_failed, read_file(work / "log").substr(0, 1500));
  const Links links = links_of(work / "candidate.so");
  if (const auto foreign = foreign_names(links); !links.readable || !foreign.empty())
    return failed(built, Verdict::cheated,
                  fmt::format("links {}", fmt::join(foreign, ", ")).substr(0, 400));
  if (!links.entry)
    return failed(built, Verdict::compile_failed, "it does not define attune_candidate");
  const std::string binary = read_file(work / "candidate.so");
  if (binary.find(".nv_fatbin") == std::string::npos)
    return failed(built, Verdict::cheated, "there is no kernel in it");
  built.binary_hash = jit::hex(jit::sha256(binary));
  built.library = work / "candidate.so";
  return built;
}

}  // namespace

const HostCompiler& cuda_compiler() {
  static const HostCompiler compiler = find_nvcc();
  return compiler;
}

Built build_cuda_program(const std::string& source, int cc, const std::string& folder,
                         double limit_seconds, const Stop& stop) {
  const double begin = monotonic_seconds();
  Built built;
  built.source_hash = jit::hex(jit::sha256(source));
  if (cuda_compiler().path.empty())
    return failed(built, Verdict::compile_failed, cuda_compiler().why_not);
  std::error_code error;
  const fs::path work =
      fs::absolute(fs::path(folder) / ("cuda-" + built.source_hash.substr(0, 16)));
  fs::create_directories(work, error);
  if (error)
    built = failed(built, Verdict::compile_failed, "cannot write into " + work.string());
  else
    built = compile(source, cc, work, limit_seconds, stop, built);
  built.seconds = monotonic_seconds() - begin;
  return built;
}

}  // namespace attune::evolve
