#include "src/jit/nvrtc.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>

#include "src/cuda/driver.hpp"
#include "src/file.hpp"
#include "src/jit/source.hpp"

namespace attune::jit {
namespace {

using Program = struct NvrtcProgram*;
constexpr int kNvrtcSuccess = 0;
constexpr int kNvrtcOutOfMemory = 1;
constexpr int kNvrtcCompilation = 6;

struct Api {
  int (*create)(Program*, const char* source, const char* name, int headers,
                const char* const* texts, const char* const* names) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int count, const char* const* options) = nullptr;
  int (*log_size)(Program, size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*cubin_size)(Program, size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*arch_count)(int*) = nullptr;
  int (*archs)(int*) = nullptr;
  const char* (*error)(int) = nullptr;

  std::vector<int> supported;  // compute capabilities
  std::string problem;
};

template <class Function>
void load(void* library, const char* name, Function* function, std::string* problem) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) *problem = fmt::format("it has no {}", name);
}

Api open_nvrtc() {
  Api api;
  const NvrtcChoice& choice = nvrtc();
  if (api.problem = choice.problem; !api.problem.empty()) return api;
  // By its full path and first: NVRTC itself asks for it by name, which the linker could not find.
  std::string ignored;
  if (!choice.library.builtins.empty())
    cuda::open_library(choice.library.builtins.c_str(), RTLD_LAZY | RTLD_LOCAL, &ignored);
  void* library =
      cuda::open_library(choice.library.path.c_str(), RTLD_LAZY | RTLD_LOCAL, &api.problem);
  if (library != nullptr) {
    load(library, "nvrtcCreateProgram", &api.create, &api.problem);
    load(library, "nvrtcDestroyProgram", &api.destroy, &api.problem);
    load(library, "nvrtcCompileProgram", &api.compile, &api.problem);
    load(library, "nvrtcGetProgramLogSize", &api.log_size, &api.problem);
    load(library, "nvrtcGetProgramLog", &api.log, &api.problem);
    load(library, "nvrtcGetCUBINSize", &api.cubin_size, &api.problem);
    load(library, "nvrtcGetCUBIN", &api.cubin, &api.problem);
    load(library, "nvrtcGetNumSupportedArchs", &api.arch_count, &api.problem);
    load(library, "nvrtcGetSupportedArchs", &api.archs, &api.problem);
    load(library, "nvrtcGetErrorString", &api.error, &api.problem);
  }
  if (!api.problem.empty()) {
    api.problem = fmt::format("NVRTC {} cannot be used: {}", choice.library.path, api.problem);
    return api;
  }
  int count = 0;
  int result = api.arch_count(&count);
  if (result == kNvrtcSuccess && count > 0) {
    api.supported.resize(size_t(count));
    result = api.archs(api.supported.data());
    if (result != kNvrtcSuccess) api.supported.clear();
  }
  if (result == kNvrtcOutOfMemory) throw std::bad_alloc();  // no answer: a later call asks again
  return api;
}

const Api& api() {
  static const Api the_api = open_nvrtc();
  return the_api;
}

Status call_status(int result, const char* call) {
  return {result == kNvrtcOutOfMemory ? ATTUNE_OUT_OF_MEMORY : ATTUNE_INTERNAL,
          fmt::format("{}: {}", call, api().error(result))};
}

// The whole of a text or an image that NVRTC hands out in two calls.
template <class Size, class Get>
Status fetch(Program program, Size size, Get get, const char* what, std::string* bytes) {
  size_t count = 0;
  int result = size(program, &count);
  if (result == kNvrtcSuccess && count > 0) {
    bytes->resize(count);
    result = get(program, bytes->data());
  }
  return result == kNvrtcSuccess ? Status{} : call_status(result, what);
}

std::vector<const char*> pointers(const std::vector<std::string>& strings) {
  std::vector<const char*> result;
  for (const std::string& s : strings) result.push_back(s.c_str());
  return result;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The number that stands before `word`: "168 bytes stack frame". -1: there is none.
int number_before(std::string_view line, std::string_view word) {
  const size_t at = line.find(word);
  if (at == std::string_view::npos) return -1;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = -1;
  std::sscanf(std::string(line.substr(begin, at - begin)).c_str(), "%d", &value);
  return value;
}

void take(std::string_view line, std::string_view word, int* value) {
  if (const int number = number_before(line, word); number >= 0) *value = number;
}

// Notes are: sizes of name and description, type, name, description; each filled up to 4 bytes.
std::string build_id_of_notes(std::string_view notes) {
  const auto padded = [](size_t size) { return (size + 3) / 4 * 4; };
  ElfW(Nhdr) note = {};
  while (notes.size() >= sizeof(note)) {
    std::memcpy(&note, notes.data(), sizeof(note));
    notes.remove_prefix(sizeof(note));
    const size_t name_size = padded(note.n_namesz), size = padded(note.n_descsz);
    if (notes.size() < name_size || notes.size() - name_size < size) break;
    std::string id;
    for (const char c : notes.substr(name_size, note.n_descsz))
      id += fmt::format("{:02x}", static_cast<unsigned char>(c));
    if (note.n_type == NT_GNU_BUILD_ID && notes.starts_with("GNU")) return id;
    notes.remove_prefix(name_size + size);
  }
  return "";
}

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

}  // namespace

void parse_log(const std::string& log, Compiled* compiled) {
  constexpr std::string_view kEntry = "Compiling entry function '";
  for (const std::string_view line : lines_of(log)) {
    if (line.find("warning") != std::string_view::npos) compiled->warnings.emplace_back(line);
    if (const size_t at = line.find(kEntry); at != std::string_view::npos) {
      const std::string_view rest = line.substr(at + kEntry.size());
      compiled->resources.push_back({.entry = std::string(rest.substr(0, rest.find('\'')))});
    }
    if (compiled->resources.empty()) continue;
    Resources& r = compiled->resources.back();
    take(line, " bytes stack frame", &r.stack);
    take(line, " bytes spill stores", &r.spill_stores);
    take(line, " bytes spill loads", &r.spill_loads);
    take(line, " registers", &r.registers);
    take(line, " bytes smem", &r.smem);
  }
}

std::string build_id(const std::string& path) {
  const File file(path, O_RDONLY);
  ElfW(Ehdr) head = {};
  if (!read_at(file.fd(), 0, &head, sizeof(head)) ||
      std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
    return "";
  for (int i = 0; i < head.e_phnum; ++i) {
    ElfW(Phdr) segment = {};
    if (!read_at(file.fd(), off_t(head.e_phoff + size_t(i) * sizeof(segment)), &segment,
                 sizeof(segment)))
      return "";
    if (segment.p_type != PT_NOTE || segment.p_filesz > (1u << 16)) continue;
    std::string notes(segment.p_filesz, '\0');
    if (!read_at(file.fd(), off_t(segment.p_offset), notes.data(), notes.size())) return "";
    if (std::string id = build_id_of_notes(notes); !id.empty()) return id;
  }
  return "";
}

const std::string& compiler_build() {
  static const std::string ids = [] {
    const NvrtcLibrary& library = nvrtc().library;
    return fmt::format("{} {}", build_id(library.path), build_id(library.builtins));
  }();
  return ids;
}

// Of Hopper the variant with all instructions; the others run on every later card of their kind.
std::string architecture(int cc) {
  const std::vector<int>& supported = api().supported;
  int best = 0;
  for (const int known : supported)
    if (known / 10 == cc / 10 && known <= cc) best = std::max(best, known);
  if (best == 0) best = cc;
  return fmt::format("sm_{}{}", best, best == 90 ? "a" : "");
}

std::string errors_of(const std::string& log, size_t limit) {
  std::string text;
  bool inside = false;  // an error goes on until the empty line after it
  for (const std::string_view line : lines_of(log)) {
    if (line.find("error") != std::string_view::npos) inside = true;
    if (line.empty()) inside = false;
    if (!inside || line.find("detected in the compilation") != std::string_view::npos) continue;
    if (text.size() + line.size() > limit) {
      if (text.empty()) text = line.substr(0, limit);
      break;
    }
    text += text.empty() ? "" : "\n";
    text += line;
  }
  return text;
}

Status compile(const std::string& source, int cc, const std::vector<std::string>& extra,
               Compiled* compiled) {
  const Api& nvrtc_api = api();
  if (!nvrtc_api.problem.empty()) return Status::unsupported(nvrtc_api.problem);
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = thread_seconds();
  const Headers& all = headers();
  const auto names = pointers(all.names), texts = pointers(all.texts);
  Program program = nullptr;
  int result = nvrtc_api.create(&program, source.c_str(), kUnitName, int(names.size()),
                                texts.data(), names.data());
  if (result != kNvrtcSuccess) return call_status(result, "nvrtcCreateProgram");
  const auto destroy = [&](Program p) { nvrtc_api.destroy(&p); };
  const std::unique_ptr<std::remove_pointer_t<Program>, decltype(destroy)> owner(program, destroy);

  std::vector<std::string> options = {"-std=c++20", "--gpu-architecture=" + architecture(cc),
                                      "--ptxas-options=-v", "-default-device"};
  options.insert(options.end(), extra.begin(), extra.end());
  result = nvrtc_api.compile(program, int(options.size()), pointers(options).data());
  if (Status s =
          fetch(program, nvrtc_api.log_size, nvrtc_api.log, "nvrtcGetProgramLog", &compiled->log);
      !s.ok())
    return s;
  while (!compiled->log.empty() && compiled->log.back() == '\0') compiled->log.pop_back();
  if (result == kNvrtcCompilation)
    return {ATTUNE_INTERNAL, fmt::format("NVRTC {} could not compile a kernel for {}:\n{}",
                                         nvrtc().library.version(), architecture(cc),
                                         errors_of(compiled->log, 800))};
  if (result != kNvrtcSuccess) {
    Status s = call_status(result, "nvrtcCompileProgram");
    s.message += fmt::format(" (NVRTC {} for {})", nvrtc().library.version(), architecture(cc));
    return s;
  }
  if (Status s =
          fetch(program, nvrtc_api.cubin_size, nvrtc_api.cubin, "nvrtcGetCUBIN", &compiled->cubin);
      !s.ok())
    return s;
  if (compiled->cubin.empty()) return {ATTUNE_INTERNAL, "NVRTC gave no cubin"};
  compiled->seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  compiled->cpu_seconds = thread_seconds() - cpu_begin;
  parse_log(compiled->log, compiled);
  return {};
}

}  // namespace attune::jit
