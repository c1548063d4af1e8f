#include "evolve/compile/cuda_program.hpp"

#include <cxxabi.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string_view>

#include "evolve/compile/candidate_text.hpp"
#include "evolve/compile/compiler_text.hpp"
#include "evolve/compile/contract.hpp"
#include "evolve/compile/flags.hpp"
#include "evolve/worker/process.hpp"
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

// The toolkit, which may lie elsewhere when nvcc is a script, and the host's compiler that nvcc
// takes from the PATH.
std::vector<std::string> folders_of(const std::string& nvcc) {
  std::error_code error;
  const fs::path real = fs::canonical(nvcc, error);
  std::vector<std::string> paths = {real.parent_path().parent_path(), real};
  std::istringstream plan(
      ask_compiler(nvcc, {"--dryrun", "-x", "cu", "/dev/null", "-o", "/dev/null"}).output);
  const std::string_view top = "#$ TOP=";
  for (std::string line; std::getline(plan, line);)
    if (line.starts_with(top)) paths.push_back(line.substr(top.size()));
  if (const std::string gcc = find_in_path("gcc"); !gcc.empty())
    for (const std::string& folder : compiler_at(gcc).folders) paths.push_back(folder);
  return toolchain_folders(paths);
}

std::string nvcc_path() {
  std::vector<std::string> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string home = variable(name); !home.empty()) folders.push_back(home + "/bin");
  std::istringstream path(variable("PATH"));
  for (std::string folder; std::getline(path, folder, ':');) folders.push_back(folder);
  folders.push_back("/usr/local/cuda/bin");
  for (const std::string& folder : folders)
    if (const std::string file = folder + "/nvcc"; access(file.c_str(), X_OK) == 0) return file;
  return "";
}

// "nvcc 13.0.48"
std::string version_of(const std::string& nvcc) {
  const std::string text = ask_compiler(nvcc, {"--version"}).output;
  std::smatch found;
  const bool known = std::regex_search(text, found, std::regex(R"(, V([0-9]+(\.[0-9]+)*))"));
  return known ? "nvcc " + found[1].str() : "nvcc";
}

HostCompiler find_nvcc() {
  if (const std::string file = nvcc_path(); !file.empty())
    return {file, version_of(file), "", folders_of(file)};
  return {"", "", "a CUDA program needs nvcc, and there is none in CUDA_HOME or on the PATH"};
}

// Where libcudart lies, which is not where programs look by themselves.
std::vector<std::string> runtime_folders() {
  std::error_code error;
  const fs::path nvcc = fs::canonical(nvcc_path(), error);
  std::vector<std::string> found;
  for (const fs::path& home : {nvcc.parent_path().parent_path(), fs::path(variable("CUDA_HOME")),
                               fs::path(variable("CUDA_PATH")), fs::path("/usr/local/cuda")})
    for (const char* folder :
         {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"})
      if (!home.empty() && fs::exists(home / folder / "libcudart.so", error))
        found.push_back((home / folder).string());
  return found;
}

// Of CUDA's run time, what has the driver's own threads call the program. Those are older than the
// wall around the program, and keep the right to open files.
constexpr std::string_view kOnOtherThreads[] = {"cudaLaunchHostFunc", "cudaStreamAddCallback",
                                                "cudaGraphAddHostNode", "cudaGraphAddNode",
                                                "cudaGetDriverEntryPoint"};

// What it asks for beyond the list of other programs and CUDA's run time: a vendor's kernels would
// come as a library, or be loaded by name.
std::vector<std::string> foreign_names(const Links& links) {
  const auto begins = [](const std::string& name, const auto& list) {
    return std::any_of(std::begin(list), std::end(list),
                       [&](std::string_view prefix) { return name.starts_with(prefix); });
  };
  constexpr std::string_view kRunTime[] = {"libcudart.so", "cuda", "__cuda"};
  std::vector<std::string> foreign;
  for (const std::string& name : links.forbidden)
    if (name != "exit" &&  // nvcc's own: the host's side of a device function that is not inline
        (!begins(name, kRunTime) || begins(name, kOnOtherThreads)))
      foreign.push_back(name);
  return foreign;
}

// attention<64>; the arguments say nothing.
std::string plain_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : mangled;
  name = name.substr(0, name.rfind('('));
  if (name.starts_with("void ")) name.erase(0, 5);  // what templates return is part of their name
  return printable(name, 120);
}

Built compile(const std::string& source, const std::vector<std::string>& macros, int cc,
              const fs::path& work, double limit_seconds, const Stop& stop, Built built) {
  std::ofstream(work / "candidate.cu") << with_adapter(source, built.contract);
  std::ofstream(work / kAdapterFile) << adapter_text(Language::cuda);
  std::ofstream(work / "candidate.h") << candidate_header();
  std::vector<std::string> arguments = {
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
      "-cudart=shared",
      "-Xptxas",
      "-v"};
  arguments.insert(arguments.end(), macros.begin(), macros.end());
  for (const std::string& folder : runtime_folders())
    for (const std::string& word : {std::string("-Xlinker"), "-rpath," + folder})
      arguments.push_back(word);
  const CompilerRun run = run_compiler(cuda_compiler(), arguments, work, limit_seconds, stop);
  if (!run.ok())
    return failed_run(built, run, cuda_compiler(), {"candidate.cu", "candidate.h", kAdapterFile},
                      work, limit_seconds);
  built.kernels = kernels_of_ptxas(run.output);
  const Links links = links_of(work / "candidate.so");
  if (const auto foreign = foreign_names(links); !links.readable || !foreign.empty())
    return failed(built, Verdict::cheated,
                  printable(fmt::format("links {}", fmt::join(foreign, ", ")), 400));
  if (!links.entry) return failed(built, Verdict::compile_failed, no_entry_text(Language::cuda));
  const std::string binary = read_file(work / "candidate.so");
  if (binary.find(".nv_fatbin") == std::string::npos)
    return failed(built, Verdict::cheated, "there is no kernel in it");
  built.binary_hash = jit::hex(jit::sha256(binary));
  built.library = work / "candidate.so";
  return built;
}

}  // namespace

std::vector<KernelUse> kernels_of_ptxas(const std::string& output) {
  static const std::regex entry(R"(Compiling entry function '([\w$.]+)')"),
      spills(R"((\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads)"),
      use(R"(Used (\d{1,5}) registers)"), shared(R"((\d{1,9}) bytes smem)");
  constexpr size_t kMostKernels = 64, kLongestLine = 2000;
  std::vector<KernelUse> kernels;
  KernelUse now;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line) && kernels.size() < kMostKernels;) {
    if (line.size() > kLongestLine) continue;
    std::smatch found;
    if (std::regex_search(line, found, entry)) now = {plain_name(found[1]), 0, 0, 0, 0};
    if (now.name.empty()) continue;
    if (std::regex_search(line, found, spills)) {
      now.spill_stores = std::stoi(found[1]);
      now.spill_loads = std::stoi(found[2]);
    }
    if (!std::regex_search(line, found, use)) continue;
    now.registers = std::stoi(found[1]);
    if (std::regex_search(line, found, shared)) now.shared = std::stoi(found[1]);
    kernels.push_back(std::exchange(now, {}));
  }
  return kernels;
}

const HostCompiler& cuda_compiler() {
  static const HostCompiler compiler = find_nvcc();
  return compiler;
}

FileAccess cuda_program_files(const std::string& library) {
  FileAccess files{system_files(), {"/dev/null", "/dev/shm"}};
  for (const std::string& folder : toolchain_folders(runtime_folders()))
    files.read.push_back(folder);
  // Of processes its own only: what the user's others were given would lie open in theirs.
  for (const char* path :
       {"/proc/self", "/proc/driver", "/proc/devices", "/proc/meminfo", "/proc/modules",
        "/proc/stat", "/proc/sys", "/proc/version", "/sys", "/etc/nvidia", "/dev/zero"})
    files.read.push_back(path);
  files.read.push_back(library);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error))
    for (const char* device : {"nvidia", "nvhost", "nvmap", "nvgpu", "dxg"})
      if (entry.path().filename().string().starts_with(device)) files.write.push_back(entry.path());
  return files;
}

Built build_cuda_program(const std::string& source, int cc, const std::string& folder,
                         double limit_seconds, const Stop& stop) {
  const double begin = monotonic_seconds();
  Built built;
  built.source_hash = jit::hex(jit::sha256(source));
  if (const std::string file = asks_for_files(source); !file.empty())
    return failed(built, Verdict::cheated, "asks for a file that is not its own: " + file);
  built.contract = contract_of(source);
  std::string refused;
  const std::vector<std::string> macros = flags_of(source, Language::cuda, &refused);
  if (!refused.empty())
    return failed(built, Verdict::invalid, fmt::format("attune-flags: {} is not allowed", refused));
  if (cuda_compiler().path.empty())
    return failed(built, Verdict::compile_failed, cuda_compiler().why_not);
  std::error_code error;
  const fs::path work =
      fs::absolute(fs::path(folder) / ("cuda-" + built.source_hash.substr(0, 16)));
  fs::create_directories(work, error);
  if (error)
    built = failed(built, Verdict::compile_failed, "cannot write into " + work.string());
  else
    built = compile(source, macros, cc, work, limit_seconds, stop, built);
  built.seconds = monotonic_seconds() - begin;
  return built;
}

}  // namespace attune::evolve
