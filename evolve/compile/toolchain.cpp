#include "evolve/compile/toolchain.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "evolve/worker/process.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostOutput = 256 << 10;  // of a compiler's complaints
constexpr rlim_t kMemory = rlim_t{4} << 30;
constexpr rlim_t kFileBytes = rlim_t{256} << 20;
constexpr double kAskSeconds = 10;

// Programs and libraries of every system, readable by all; nothing of a user's.
constexpr const char* kSystem[] = {"/usr",   "/bin",    "/sbin",      "/lib",      "/lib32",
                                   "/lib64", "/libx32", "/nix/store", "/gnu/store"};
constexpr const char* kSystemFiles[] = {"/etc/ld.so.cache",       "/etc/ld.so.conf",
                                        "/etc/ld.so.conf.d",      "/etc/ld.so.preload",
                                        "/etc/alternatives",      "/dev/urandom",
                                        "/proc/cpuinfo",  // -march=native on Arm
                                        "/sys/devices/system/cpu"};

// A compiler that lies in one of these does not open all of it.
constexpr const char* kNeverWhole[] = {"/",        "/home", "/root",  "/tmp", "/var",
                                       "/var/tmp", "/etc",  "/proc",  "/sys", "/run",
                                       "/mnt",     "/dev",  "/media", "/srv"};

bool lies_in(const std::string& path, const std::string& folder) {
  return path == folder ||
         (path.starts_with(folder) && (folder.ends_with('/') || path[folder.size()] == '/'));
}

bool may_be_opened(const std::string& folder) {
  if (std::find(std::begin(kNeverWhole), std::end(kNeverWhole), folder) != std::end(kNeverWhole))
    return false;
  const char* home = std::getenv("HOME");
  std::error_code error;
  const std::string at = home != nullptr ? fs::weakly_canonical(home, error).string() : "";
  return at.empty() || (!lies_in(at, folder) && folder != at + "/.local");
}

// Real paths, each once, without those that lie in another or in the system's.
class Folders {
 public:
  void add(const fs::path& path) {
    std::error_code error;
    const std::string real = fs::canonical(path, error).string();
    if (error || !may_be_opened(real)) return;
    for (const char* folder : kSystem)
      if (lies_in(real, folder)) return;
    for (const std::string& folder : all_)
      if (lies_in(real, folder)) return;
    all_.push_back(real);
  }

  // A program, and the prefix in which it is installed.
  void add_program(const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error) return;
    if (real.parent_path().filename() == "bin") add(real.parent_path().parent_path());
    add(real);
  }

  // The prefix of a compiler's own folder: PREFIX/lib/gcc/..., PREFIX/lib/clang/...
  void add_prefix_of(const std::string& folder) {
    std::error_code error;
    const std::string real = fs::weakly_canonical(folder, error).string();
    for (const char* part : {"/lib/gcc/", "/lib64/gcc/", "/libexec/gcc/", "/lib/clang/"})
      if (const size_t at = real.find(part); at != std::string::npos && at > 0)
        add(real.substr(0, at));
    add(folder);
  }

  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
};

std::vector<std::string> library_path() {
  const char* value = std::getenv("LD_LIBRARY_PATH");
  std::istringstream list(value != nullptr ? value : "");
  std::vector<std::string> folders;
  for (std::string folder; std::getline(list, folder, ':');)
    if (folder.starts_with('/')) folders.push_back(folder);
  return folders;
}

std::vector<std::string> environment_in(const std::string& home) {
  // A compiler behind ccache works by itself: the cache lies where it may not write.
  std::vector<std::string> environment = {"LC_ALL=C", "CCACHE_DISABLE=1", "HOME=" + home};
  inherit("PATH", &environment);  // where it finds its assembler
  inherit("LD_LIBRARY_PATH", &environment);
  return environment;
}

CompilerRun run_program(Spawn what, double limit_seconds, const Stop& stop = {}) {
  CompilerRun run;
  Fd read_end, write_end;
  if (run.start = make_pipe(&read_end, &write_end); !run.start.ok()) return run;
  what.descriptors = {-1, write_end.get(), write_end.get()};
  what.starts_others = true;
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

std::string answer(const std::string& compiler, const std::vector<std::string>& arguments) {
  const CompilerRun run = ask_compiler(compiler, arguments);
  return run.ok() ? run.output : "";
}

}  // namespace

CompilerRun ask_compiler(const std::string& path, const std::vector<std::string>& arguments) {
  return run_program({path, arguments, environment_in("/"), "", {}, {}}, kAskSeconds);
}

bool CompilerRun::ok() const {
  return start.ok() && !timeout && !stopped && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::vector<std::string> toolchain_folders(const std::vector<std::string>& paths) {
  Folders folders;
  for (const std::string& path : paths) folders.add(path);
  return folders.all();
}

std::vector<std::string> system_files() {
  std::vector<std::string> all(std::begin(kSystem), std::end(kSystem));
  all.insert(all.end(), std::begin(kSystemFiles), std::end(kSystemFiles));
  for (const std::string& folder : toolchain_folders(library_path())) all.push_back(folder);
  return all;
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

HostCompiler compiler_at(const std::string& path) {
  const std::string version = answer(path, {"--version"});
  if (version.empty()) return {"", "", fmt::format("{} --version fails", path)};
  Folders folders;
  folders.add_program(path);
  std::istringstream searched(answer(path, {"-print-search-dirs"}));
  for (std::string line; std::getline(searched, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::istringstream list(line.substr(colon + 2 + (line[colon + 2] == '=' ? 1 : 0)));
    for (std::string folder; std::getline(list, folder, ':');)
      if (folder.starts_with('/')) folders.add_prefix_of(folder);
  }
  std::istringstream verbose(
      answer(path, {"-E", "-v", "-x", "c++", "/dev/null", "-o", "/dev/null"}));
  bool headers = false;
  for (std::string line; std::getline(verbose, line);) {
    if (line.ends_with("search starts here:")) headers = true;
    if (line.starts_with("End of search list")) headers = false;
    if (headers && line.starts_with(" /")) folders.add(line.substr(1));
  }
  for (const char* name : {"as", "ld"}) {
    std::string program = answer(path, {fmt::format("-print-prog-name={}", name)});
    program = program.substr(0, program.find('\n'));
    if (program.find('/') == std::string::npos) program = find_in_path(name);
    if (!program.empty()) folders.add_program(program);
  }
  return {path, version.substr(0, version.find('\n')), "", folders.all()};
}

CompilerRun run_compiler(const HostCompiler& compiler, const std::vector<std::string>& arguments,
                         const std::string& folder, double limit_seconds, const Stop& stop) {
  std::error_code error;
  const std::string work = fs::absolute(folder, error).string();
  Spawn what;
  what.program = compiler.path;
  what.arguments = arguments;
  what.environment = environment_in(work);
  what.environment.push_back("TMPDIR=" + work);
  what.folder = work;
  what.limits = {{RLIMIT_CORE, 0},
                 {RLIMIT_CPU, rlim_t(std::max(0.0, limit_seconds)) + 2},
                 {RLIMIT_AS, kMemory},
                 {RLIMIT_FSIZE, kFileBytes}};
  Folders more;
  for (const std::string& argument : arguments)
    if (argument.starts_with("-I/")) more.add(argument.substr(2));
  FileAccess files{compiler.folders, {work, "/dev/null"}};
  for (const std::string& path : system_files()) files.read.push_back(path);
  files.read.insert(files.read.end(), more.all().begin(), more.all().end());
  what.files = files;
  return run_program(what, limit_seconds, stop);
}

bool is_of_toolchain(const HostCompiler& compiler, const std::string& path) {
  std::error_code error;
  const std::string real = fs::weakly_canonical(path, error).string();
  const auto holds = [&](const std::string& folder) { return lies_in(real, folder); };
  return std::any_of(std::begin(kSystem), std::end(kSystem), holds) ||
         std::any_of(compiler.folders.begin(), compiler.folders.end(), holds);
}

}  // namespace attune::evolve
