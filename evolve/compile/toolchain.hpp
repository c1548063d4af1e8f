// Compilers as processes. A program that is compiled may ask its compiler for any file that the
// user can read; so a compiler opens its own files and those of the build, and nothing else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/status.hpp"

namespace attune::evolve {

struct HostCompiler {
  std::string path;     // empty: none
  std::string version;  // its first line
  std::string why_not;
  std::vector<std::string> folders = {};  // where its files lie, beside the system's own folders
};

// Asks it where its parts are. It may be a link, a script, or ccache.
HostCompiler compiler_at(const std::string& path);
// Real paths of files and folders, without the system's own and without those of which only a part
// may be opened, such as the user's home.
std::vector<std::string> toolchain_folders(const std::vector<std::string>& paths);
// Programs and libraries of every system, and what their loader reads, LD_LIBRARY_PATH included:
// nothing else of a user's.
std::vector<std::string> system_files();
std::string find_in_path(const std::string& name);  // empty: it is not there

using Stop = std::function<bool()>;  // asked while the compiler works: Ctrl-C

struct CompilerRun {
  Status start;  // of the process
  bool timeout = false, stopped = false;
  int status = -1;     // as of waitpid
  std::string output;  // stdout and stderr together, the first part of it

  bool ok() const;
};

// A question, with nothing of a candidate's: as any program that the user starts.
CompilerRun ask_compiler(const std::string& path, const std::vector<std::string>& arguments);

// Works in `folder`, the only one that it changes; killed after `limit_seconds` with all that it
// has started. It reads the system's folders of programs and libraries, `compiler.folders` and
// those of -I in the arguments, where the kernel has Landlock. Its memory is bounded.
CompilerRun run_compiler(const HostCompiler& compiler, const std::vector<std::string>& arguments,
                         const std::string& folder, double limit_seconds, const Stop& stop = {});

// Whether a file lies where every compiler finds its own: the system's folders, and `compiler`'s.
bool is_of_toolchain(const HostCompiler& compiler, const std::string& path);

}  // namespace attune::evolve
