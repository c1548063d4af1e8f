// Where NVRTC may be: beside torch's wheels, in a toolkit, in what `./x setup` installed.
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>

#include "src/cuda/driver.hpp"
#include "src/cuda/fork.hpp"
#include "src/file.hpp"
#include "src/jit/folder.hpp"
#include "src/jit/nvrtc.hpp"

namespace attune::jit {
namespace {

namespace fs = std::filesystem;

constexpr int kOldestMajor = 12;  // the first that knows C++20
constexpr const char* kAdvice =
    "install one (pip install nvidia-cuda-nvrtc, or ./x setup in a source tree) or name it in "
    "ATTUNE_NVRTC";

// Nothing in a program that runs with other rights than its user's: who calls it must not choose
// what it loads.
std::string environment(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr ? value : "";
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Whether the name fits the pattern, in which `*` stands for any letters.
bool fits(std::string_view name, std::string_view pattern) {
  constexpr size_t kNone = std::string_view::npos;
  size_t at = 0, next = 0, star = kNone, begin = 0;  // begin: what the last star stands for
  while (at < name.size()) {
    if (next < pattern.size() && pattern[next] == '*') {
      star = next++;
      begin = at;
    } else if (next < pattern.size() && pattern[next] == name[at]) {
      ++next;
      ++at;
    } else if (star != kNone) {  // it stands for one letter more
      next = star + 1;
      at = ++begin;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', next) == kNone;
}

// Appends what fits in the folder.
void add_entries(const std::string& folder, const std::string& pattern,
                 std::vector<std::string>* paths) {
  std::error_code error;
  if (pattern.find('*') == std::string::npos) {
    if (fs::exists(folder + "/" + pattern, error)) paths->push_back(folder + "/" + pattern);
    return;
  }
  each_name(folder + "/", [&](std::string_view name) {
    if (!name.starts_with('.') && fits(name, pattern))
      paths->push_back(folder + "/" + std::string(name));
  });
}

// What matches a shell pattern. Not by glob: for want of memory, the C library's frees its
// results twice. Sorted so that the newest of a numbered kind comes first.
std::vector<std::string> matches(const std::string& pattern) {
  std::vector<std::string> paths = {pattern.starts_with('/') ? "" : "."};
  for (const std::string& part : split(pattern, '/')) {
    std::vector<std::string> longer;
    for (const std::string& path : paths) add_entries(path, part, &longer);
    paths = std::move(longer);
  }
  std::sort(paths.rbegin(), paths.rend());
  return paths;
}

// Folders, each once, in the order in which they were found. Absolute ones only: what the current
// folder holds is never loaded.
class FolderList {
 public:
  void add(const std::string& folder) {
    std::error_code error;
    if (!folder.starts_with('/') || !fs::is_directory(folder, error)) return;
    if (std::find(folders_.begin(), folders_.end(), folder) == folders_.end())
      folders_.push_back(folder);
  }
  void add_matches(const std::string& pattern) {
    for (const std::string& folder : matches(pattern)) add(folder);
  }
  // The wheels of NVIDIA: nvidia/cu13/lib, nvidia/cuda_nvrtc/lib.
  void add_site_packages(const std::string& folder) { add_matches(folder + "/nvidia/*/lib"); }
  // The site-packages that a file lies in, if any.
  void add_site_packages_of(const std::string& file) {
    constexpr std::string_view kSite = "-packages/";
    if (const size_t at = file.find(kSite); at != std::string::npos)
      add_site_packages(file.substr(0, at + kSite.size() - 1));
  }
  void add_python_prefix(const std::string& prefix) {
    if (prefix.empty()) return;
    for (const char* lib : {"/lib", "/lib64"})
      for (const std::string& folder : matches(prefix + lib + "/python3*/*-packages"))
        add_site_packages(folder);
  }
  void add_toolkit(const std::string& prefix) {
    if (prefix.empty()) return;
    add(prefix + "/lib64");
    add_matches(prefix + "/targets/*/lib");
    add(prefix + "/lib");
  }

  std::vector<std::string> folders_;
};

// The folders of loaded libraries of a name: what lies there is what the process uses already.
void add_loaded(const std::vector<std::string>& loaded, const char* prefix, FolderList* list) {
  for (const std::string& path : loaded)
    if (const fs::path file(path); file.filename().string().starts_with(prefix))
      list->add(file.parent_path().string());
}

// The linker's own folders. Its cache has a private format; the text files it was made from do not.
void add_linker_folders(const std::string& root, FolderList* list) {
  std::vector<std::string> files = matches(root + "/etc/ld.so.conf.d/*.conf");
  files.push_back(root + "/etc/ld.so.conf");
  for (const std::string& name : files) {
    for (const std::string& line : split(read_text(name), '\n'))
      if (line.starts_with("/"))
        list->add(root + line.substr(0, line.find_last_not_of(" \t\r") + 1));
  }
  list->add_matches(root + "/usr/lib/*-linux-gnu");
  list->add(root + "/usr/lib64");
  list->add(root + "/usr/lib");
}

// Without links; empty where there is no such file.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  if (error == std::errc::not_enough_memory) throw std::bad_alloc();
  return error ? fs::path() : real;
}

// The prefix of the python3 that a shell would start, as it is called and where it really lies.
void add_python_of_path(const std::string& path, FolderList* list) {
  for (const std::string& folder : split(path, ':')) {
    const fs::path program = fs::path(folder) / "python3";
    std::error_code error;
    if (!program.is_absolute() || !fs::exists(program, error)) continue;
    list->add_python_prefix(program.parent_path().parent_path().string());
    if (const fs::path real = real_path(program); !real.empty())
      list->add_python_prefix(real.parent_path().parent_path().string());
    return;
  }
}

// Toolkits also carry libraries for other processors. They differ in the beginning of the file: its
// class and byte order, and the machine.
bool is_for_this_processor(const std::string& path) {
  char here[20] = "", there[20] = "";
  read_at(File("/proc/self/exe", O_RDONLY).fd(), 0, here, sizeof(here));
  read_at(File(path, O_RDONLY).fd(), 0, there, sizeof(there));
  return std::memcmp(here, there, 6) == 0 && std::memcmp(here + 18, there + 18, 2) == 0;
}

// "libnvrtc.so.12.8.93" after its prefix: 12 and 8. -1 where there is no number.
void parse_version(const std::string& name, const std::string& prefix, int* major, int* minor) {
  *major = *minor = -1;
  if (name.starts_with(prefix)) std::sscanf(name.c_str() + prefix.size(), "%d.%d", major, minor);
}

// The file's second half: of the same version; where the file's name tells no minor, the newest
// there tells it.
void find_builtins(const fs::path& folder, NvrtcLibrary* library) {
  const std::string prefix = "libnvrtc-builtins.so.";
  const int wanted = library->minor;
  for (const std::string& path : matches((folder / (prefix + "*")).string())) {
    int major = 0, minor = 0;
    parse_version(fs::path(path).filename().string(), prefix, &major, &minor);
    if (major != library->major) continue;
    if (wanted >= 0 ? minor == wanted : minor > library->minor) {
      library->builtins = path;
      library->minor = minor;
    }
  }
}

// A library by its path; major 0 when the name tells no version.
NvrtcLibrary describe(const std::string& path) {
  const fs::path real = real_path(path);
  NvrtcLibrary library{path, "", 0, 0};
  if (real.empty()) return library;
  parse_version(real.filename().string(), "libnvrtc.so.", &library.major, &library.minor);
  if (library.major < 0) library.major = 0;
  find_builtins(fs::path(path).parent_path(), &library);
  if (library.builtins.empty()) find_builtins(real.parent_path(), &library);
  if (library.minor < 0) library.minor = 0;
  return library;
}

// The folder of the file that this code is in: a library, or a program that has it linked in. Empty
// where the loader knows it by a relative name only, which would be taken from the current folder.
std::string library_dir() {
  Dl_info facts = {};
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<const void*>(&library_dir), &facts, reinterpret_cast<void**>(&map),
              RTLD_DL_LINKMAP) == 0)
    return "";
  std::error_code error;
  const std::string name = map->l_name;  // a program's is empty, and dli_fname what it was called
  const fs::path file = name.empty() ? fs::read_symlink("/proc/self/exe", error) : fs::path(name);
  return file.is_absolute() ? file.parent_path().string() : "";
}

NvrtcPlaces places_of_this_process() {
  NvrtcPlaces places;
  const int status = dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        if (info->dlpi_name == nullptr || info->dlpi_name[0] != '/') return 0;
        try {
          static_cast<std::vector<std::string>*>(data)->emplace_back(info->dlpi_name);
          return 0;
        } catch (const std::bad_alloc&) {  // nothing may be thrown through the C library
          return 1;
        }
      },
      &places.loaded);
  if (status != 0) throw std::bad_alloc();
  places.library_dir = library_dir();
  places.home = environment("HOME");
  places.ld_library_path = environment("LD_LIBRARY_PATH");
  places.path = environment("PATH");
  places.cuda_home = environment("CUDA_HOME");
  places.cuda_path = environment("CUDA_PATH");
  places.virtual_env = environment("VIRTUAL_ENV");
  places.conda_prefix = environment("CONDA_PREFIX");
  return places;
}

// A path that the user named is taken or refused, never replaced.
NvrtcChoice named_nvrtc(const std::string& named) {
  NvrtcChoice choice;
  choice.place = "ATTUNE_NVRTC";
  std::error_code error;
  if (fs::is_directory(named, error)) {
    const std::vector<NvrtcLibrary> libraries = list_nvrtc({named});
    if (libraries.empty())
      choice.problem = fmt::format("ATTUNE_NVRTC is {}, a folder without libnvrtc.so.*", named);
    else
      choice.library = libraries.front();
  } else if (!fs::exists(named, error)) {
    choice.problem = fmt::format("ATTUNE_NVRTC is {}, but there is no such file", named);
  } else {
    choice.library = describe(named);
  }
  return choice;
}

// Whether the loader would look for a name in the current folder: an empty element of
// LD_LIBRARY_PATH stands for it, and relative ones begin there. As the process was started: what
// the variable is now does not matter to the loader.
bool linker_looks_in_current_folder() {
  std::string why;
  void* program = cuda::open_library(nullptr, RTLD_LAZY, &why);
  Dl_serinfo size = {};
  if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) return true;
  std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const info = reinterpret_cast<Dl_serinfo*>(memory.data());
  if (dlinfo(program, RTLD_DI_SERINFOSIZE, info) != 0 ||
      dlinfo(program, RTLD_DI_SERINFO, info) != 0)
    return true;
  const Dl_serpath* const folders = info->dls_serpath;
  return std::any_of(folders, folders + info->dls_cnt,
                     [](const Dl_serpath& folder) { return folder.dls_name[0] != '/'; });
}

// What the linker finds by name, where all our guesses failed. This loads it.
std::vector<NvrtcLibrary> nvrtc_of_linker() {
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}) {
    std::string why;
    void* library = cuda::open_library(name, RTLD_LAZY | RTLD_LOCAL, &why);
    link_map* map = nullptr;
    if (library != nullptr && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
      return {describe(map->l_name)};
  }
  return {};
}

NvrtcChoice find_nvrtc(int driver_version) {
  NvrtcChoice choice;
  if (const std::string named = environment("ATTUNE_NVRTC"); !named.empty()) {
    choice = named_nvrtc(named);
  } else {
    choice = choose_place(nvrtc_folders(places_of_this_process()), driver_version);
    if (choice.library.path.empty() && linker_looks_in_current_folder()) {
      choice.problem +=
          ". The loader was not asked for one: it would look in the current folder too, because "
          "LD_LIBRARY_PATH has an empty or relative element";
    } else if (choice.library.path.empty()) {
      const std::vector<NvrtcLibrary> libraries = nvrtc_of_linker();
      std::string why;
      if (const NvrtcLibrary* best = choose_nvrtc(libraries, driver_version, &why))
        choice = {.library = *best, .place = "the loader, by name", .problem = "", .identity = ""};
      else if (!libraries.empty())
        choice.problem = why;
    }
  }
  if (choice.problem.empty()) {
    std::error_code error;
    choice.identity =
        fmt::format("{} {}", choice.library.version(), fs::file_size(choice.library.path, error));
  }
  return choice;
}

std::mutex g_nvrtc_mutex;
const cuda::HeldOverFork<g_nvrtc_mutex> g_nvrtc_held;
std::atomic<bool> g_settled{false};
NvrtcChoice g_choice;

}  // namespace

std::string NvrtcLibrary::version() const { return fmt::format("{}.{}", major, minor); }

std::vector<NvrtcFolders> nvrtc_folders(const NvrtcPlaces& places) {
  const std::string& root = places.root;
  const fs::path library(places.library_dir);
  std::error_code error;
  std::vector<NvrtcFolders> result;
  const auto place = [&](const char* name, const auto& fill) {
    FolderList list;
    fill(list);
    if (!list.folders_.empty()) result.push_back({name, std::move(list.folders_)});
  };
  place("loaded in this process already",
        [&](FolderList& list) { add_loaded(places.loaded, "libnvrtc", &list); });
  place("beside the CUDA runtime that is loaded",
        [&](FolderList& list) { add_loaded(places.loaded, "libcudart", &list); });
  place("beside Attune's library", [&](FolderList& list) {
    list.add((library / "nvrtc").string());
    list.add(library.string());
  });
  place("the Python packages beside Attune's",
        [&](FolderList& list) { list.add_site_packages_of(places.library_dir + "/"); });
  place("the Python packages of a loaded library", [&](FolderList& list) {
    for (const std::string& path : places.loaded) list.add_site_packages_of(path);
  });
  place("the source tree's .venv", [&](FolderList& list) {
    if (!places.library_dir.empty() && fs::exists(library / "CMakeCache.txt", error))
      list.add_python_prefix((library.parent_path() / ".venv").string());
  });
  place("the active Python environment", [&](FolderList& list) {
    list.add_python_prefix(places.virtual_env);
    list.add_python_prefix(places.conda_prefix);
  });
  place("the toolkit of CUDA_HOME or CUDA_PATH", [&](FolderList& list) {
    list.add_toolkit(places.cuda_home);
    list.add_toolkit(places.cuda_path);
  });
  place("the CUDA toolkit", [&](FolderList& list) {
    for (const std::string& prefix : matches(root + "/usr/local/cuda*")) list.add_toolkit(prefix);
  });
  place("LD_LIBRARY_PATH", [&](FolderList& list) {
    for (const std::string& folder : split(places.ld_library_path, ':')) list.add(folder);
  });
  place("the loader's folders", [&](FolderList& list) { add_linker_folders(root, &list); });
  place("the Python packages of PATH's python3",
        [&](FolderList& list) { add_python_of_path(places.path, &list); });
  place("the Python packages of this user or the system", [&](FolderList& list) {
    if (!places.home.empty()) list.add_python_prefix(places.home + "/.local");
    list.add_python_prefix(root + "/usr/local");
    list.add_python_prefix(root + "/usr");
    for (const char* name : {".venv", "venv", "conda"})
      for (const std::string& prefix : matches(root + "/opt/*/" + name))
        list.add_python_prefix(prefix);
    for (const std::string& prefix : matches(root + "/opt/*")) list.add_python_prefix(prefix);
  });
  return result;
}

std::vector<NvrtcLibrary> list_nvrtc(const std::vector<std::string>& folders) {
  std::vector<NvrtcLibrary> libraries;
  std::vector<fs::path> seen;
  for (const std::string& folder : folders) {
    std::vector<std::string> files = matches(folder + "/libnvrtc.so.*");
    if (files.empty()) files = matches(folder + "/libnvrtc.so");
    for (const std::string& file : files) {
      const fs::path real = real_path(file);
      if (real.empty() || std::find(seen.begin(), seen.end(), real) != seen.end()) continue;
      const NvrtcLibrary library = describe(file);
      if (library.major == 0 || !is_for_this_processor(file)) continue;
      seen.push_back(real);
      libraries.push_back(library);
    }
  }
  return libraries;
}

const NvrtcLibrary* choose_nvrtc(const std::vector<NvrtcLibrary>& libraries, int driver_version,
                                 std::string* why) {
  const int newest_major = driver_version > 0 ? driver_version / 1000 : 1000;
  const NvrtcLibrary* best = nullptr;
  const auto number = [](const NvrtcLibrary& l) { return 1000 * l.major + l.minor; };
  for (const NvrtcLibrary& library : libraries) {
    if (library.major < kOldestMajor || library.major > newest_major) continue;
    if (best == nullptr || number(library) > number(*best)) best = &library;
  }
  if (best != nullptr) return best;
  if (libraries.empty()) {
    *why = fmt::format("there is no NVRTC (libnvrtc.so) on this machine: {}", kAdvice);
  } else {
    const NvrtcLibrary& first = libraries.front();
    *why =
        fmt::format("NVRTC {} ({}) does not fit: {} to {} is needed; {}", first.version(),
                    first.path, kOldestMajor,
                    driver_version > 0 ? cuda::version_text(driver_version) : "any newer", kAdvice);
  }
  return nullptr;
}

NvrtcChoice choose_place(const std::vector<NvrtcFolders>& places, int driver_version) {
  NvrtcChoice choice;
  std::vector<NvrtcLibrary> all;
  for (const NvrtcFolders& place : places) {
    const std::vector<NvrtcLibrary> libraries = list_nvrtc(place.folders);
    if (const NvrtcLibrary* best = choose_nvrtc(libraries, driver_version, &choice.problem))
      return {.library = *best, .place = place.place, .problem = "", .identity = ""};
    all.insert(all.end(), libraries.begin(), libraries.end());
  }
  choose_nvrtc(all, driver_version, &choice.problem);
  return choice;
}

const NvrtcChoice& nvrtc() {
  if (g_settled.load(std::memory_order_acquire)) return g_choice;
  const cuda::Driver* driver = cuda::driver();  // first: it has a lock of its own
  std::lock_guard lock(g_nvrtc_mutex);
  if (!g_settled.load(std::memory_order_relaxed)) {
    g_choice = find_nvrtc(driver != nullptr ? driver->version : 0);
    g_settled.store(true, std::memory_order_release);
  }
  return g_choice;
}

}  // namespace attune::jit
