// NVRTC, NVIDIA's run-time compiler: where it is, and one compile. It is opened at run time, and
// needs no GPU.
#pragma once

#include <string>
#include <vector>

#include "src/status.hpp"

namespace attune::jit {

// ---- finding it ----

// Where a search starts. The process's own in find_nvrtc; made up in tests.
struct NvrtcPlaces {
  std::string root;                 // in front of every absolute path of the system
  std::vector<std::string> loaded;  // libraries that the process has loaded already
  std::string library_dir;          // where this library lies
  std::string home, ld_library_path, path, cuda_home, cuda_path, virtual_env, conda_prefix;
};

// One place, and its folders.
struct NvrtcFolders {
  std::string place;
  std::vector<std::string> folders;
};

// The places in which NVRTC may lie, those that count most first: what the process uses, what was
// installed with the library, then what the machine has. The current folder is none of them.
std::vector<NvrtcFolders> nvrtc_folders(const NvrtcPlaces& places);

struct NvrtcLibrary {
  std::string path;
  std::string builtins;  // its second half, which lies beside it; empty: not there
  int major = 0, minor = 0;

  bool operator==(const NvrtcLibrary&) const = default;
  std::string version() const;  // "13.0"
};

// The NVRTCs in the folders, in their order, each once. By their names: nothing is loaded.
std::vector<NvrtcLibrary> list_nvrtc(const std::vector<std::string>& folders);

// The newest one that the driver can follow: a driver of CUDA 12.x loads kernels of every 12.y, but
// not of 13. With no driver (0) the newest. Null: none, and `why` says so.
const NvrtcLibrary* choose_nvrtc(const std::vector<NvrtcLibrary>& libraries, int driver_version,
                                 std::string* why);

struct NvrtcChoice {
  NvrtcLibrary library;
  std::string place;     // where it was found, in words
  std::string problem;   // empty when there is one; else why not, and what to do
  std::string identity;  // version and size: another compiler gives other kernels
};

// The first place that has one which fits decides, and the version only among those of that place:
// a new file somewhere else does not replace the compiler that was installed with the library.
NvrtcChoice choose_place(const std::vector<NvrtcFolders>& places, int driver_version);

// This process's NVRTC; settled by the first call. It is found but not loaded: a kernel out of the
// cache does not pay for that.
const NvrtcChoice& nvrtc();

// ---- using it ----

// What ptxas says of one kernel. Bytes.
struct Resources {
  std::string entry;
  int registers = 0;
  int stack = 0;  // local memory
  int spill_stores = 0, spill_loads = 0;
  int smem = 0;  // static shared memory

  bool operator==(const Resources&) const = default;
};

struct Compiled {
  std::string cubin;
  std::string log;
  std::vector<Resources> resources;
  std::vector<std::string> warnings;
  double seconds = 0;
  double cpu_seconds = 0;  // of this thread, which a busy machine does not stretch
};

// All that is said in `log`, besides errors.
void parse_log(const std::string& log, Compiled* compiled);

// The build ids of the compiler's files, which tell builds of one version and size apart. Found
// without loading them. Empty where they have none.
const std::string& compiler_build();
std::string build_id(const std::string& path);  // of an ELF file, in hexadecimal

std::string architecture(int cc);  // "sm_90a": the name that the compiler is given

// Compiles one translation unit with the embedded headers, and with the extra options. Safe from
// many threads. A failure of the source is ATTUNE_INTERNAL, with the compiler's errors;
// compiled->log has all it said.
Status compile(const std::string& source, int cc, const std::vector<std::string>& options,
               Compiled* compiled);

// The errors of a log, at most about `limit` characters.
std::string errors_of(const std::string& log, size_t limit);

}  // namespace attune::jit
