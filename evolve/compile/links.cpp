// What a shared object asks of others, read from its own dynamic table: no binutils needed.
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/compile/host_compile.hpp"

namespace attune::evolve {
namespace {

// ---- What is allowed ----

constexpr std::string_view kLibraries[] = {
    "libc.so.6",
    "libm.so.6",
    "libmvec.so.1",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libc++.so.1",
    "libc++abi.so.1",
    "libunwind.so.1",
    "ld-linux.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
};

constexpr std::string_view kNames[] = {
    // memory and strings
    "malloc",
    "calloc",
    "realloc",
    "free",
    "aligned_alloc",
    "posix_memalign",
    "memalign",
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "memchr",
    "bcmp",
    "strlen",
    "strcmp",
    "strncmp",
    "strcpy",
    "strncpy",
    "strcat",
    "strchr",
    "strstr",
    "snprintf",
    "vsnprintf",
    "qsort",
    "__memcpy_chk",
    "__memmove_chk",
    "__memset_chk",
    "__strcpy_chk",
    "__snprintf_chk",
    // the compiler's own
    "__errno_location",
    "__tls_get_addr",
    "__stack_chk_fail",
    "__stack_chk_guard",
    "__assert_fail",
    "abort",
    "__gmon_start__",
    "_Unwind_Resume",
    "__gxx_personality_v0",
    "__dso_handle",
    // locks of tasks, which the standard library's templates also name
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_mutex_trylock",
    "pthread_mutex_init",
    "pthread_mutex_destroy",
    "pthread_once",
    "__pthread_key_create",
    "pthread_self",
    // <iostream> sets itself up where it is included
    "_ZNSt8ios_base4InitC1Ev",
    "_ZNSt8ios_base4InitD1Ev",
};

constexpr std::string_view kPrefixes[] = {
    "_Zn",     // new
    "_Zd",     // delete
    "__cxa_",  // exceptions, guards, destructors of statics
    "_ITM_",   // transactional memory: weak, in every object
    "_ZGV",    // vectorised mathematics
    "_ZTV",
    "_ZTI",
    "_ZTS",  // tables of classes
    "_ZSt9terminate",
    "_ZSt17__throw_",
    "_ZSt16__throw_",
    "_ZSt18__throw_",
    "_ZSt19__throw_",
    "_ZSt20__throw_",
    "_ZSt21__throw_",
    "_ZSt22__throw_",
    "_ZSt23__throw_",
    "_ZSt24__throw_",
    "_ZSt25__throw_",
    "_ZSt28__throw_",
    "_ZNSt9exception",
    "_ZNKSt9exception",
    "_ZNSt9bad_alloc",
    "_ZNKSt9bad_alloc",
    "_ZNSt13runtime_error",
    "_ZNSt11logic_error",
    "_ZNSt12length_error",
    "_ZNSt12out_of_range",
    "_ZNSt16invalid_argument",
    "_ZNSt7__cxx1112basic_string",
    "_ZNKSt7__cxx1112basic_string",
    "_ZSt18_Rb_tree_",
    "_ZSt28_Rb_tree_",
    "_ZSt29_Rb_tree_",
    "_ZNSt8__detail",
    "_ZNKSt8__detail",
    "_ZSt11_Hash_bytes",
    "_ZSt7nothrow",
};

// Each also as ...f and ...l, and as __..._finite.
constexpr std::string_view kMathematics[] = {
    "exp",       "exp2",  "exp10",     "expm1",   "log",    "log2",   "log10",    "log1p",
    "pow",       "sqrt",  "cbrt",      "hypot",   "sin",    "cos",    "tan",      "sincos",
    "asin",      "acos",  "atan",      "atan2",   "sinh",   "cosh",   "tanh",     "asinh",
    "acosh",     "atanh", "erf",       "erfc",    "tgamma", "lgamma", "fma",      "fmod",
    "remainder", "fmin",  "fmax",      "fdim",    "fabs",   "floor",  "ceil",     "trunc",
    "round",     "rint",  "nearbyint", "lrint",   "lround", "llrint", "llround",  "ldexp",
    "frexp",     "modf",  "scalbn",    "scalbln", "ilogb",  "logb",   "copysign", "nextafter",
    "nan",
};

template <size_t N>
bool among(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

bool is_mathematics(std::string_view name) {
  if (name.starts_with("__") && name.ends_with("_finite"))
    name = name.substr(2, name.size() - 2 - 7);
  if (among(kMathematics, name)) return true;
  return (name.ends_with('f') || name.ends_with('l')) &&
         among(kMathematics, name.substr(0, name.size() - 1));
}

bool is_allowed(std::string_view name) {
  if (among(kNames, name) || is_mathematics(name)) return true;
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// ---- The file ----

class Object {
 public:
  explicit Object(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  // Names of libraries, of symbols that others must define, and of those it defines. False when
  // the file is not what a linker of this machine makes.
  bool read(std::vector<std::string>* needed, std::vector<std::string>* undefined,
            std::vector<std::string>* defined) {
    const std::optional<Elf64_Ehdr> header = at<Elf64_Ehdr>(0);
    if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_type != ET_DYN)
      return false;
    std::optional<Elf64_Phdr> dynamic;
    for (size_t n = 0; n < header->e_phnum; ++n) {
      const auto segment = at<Elf64_Phdr>(header->e_phoff + n * sizeof(Elf64_Phdr));
      if (!segment) return false;
      if (segment->p_type == PT_LOAD) loads_.push_back(*segment);
      if (segment->p_type == PT_DYNAMIC) dynamic = segment;
    }
    return dynamic && read_dynamic(*dynamic, needed) && read_symbols(undefined, defined);
  }

 private:
  template <class T>
  std::optional<T> at(uint64_t offset) const {
    if (bytes_.size() < sizeof(T) || offset > bytes_.size() - sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  // Where in the file an address is found when the object is loaded.
  std::optional<uint64_t> offset_of(uint64_t address) const {
    for (const Elf64_Phdr& s : loads_)
      if (address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz)
        return address - s.p_vaddr + s.p_offset;
    return std::nullopt;
  }

  std::optional<std::string> text(uint64_t offset) const {
    const uint64_t begin = strings_ + offset;
    if (begin >= bytes_.size()) return std::nullopt;
    const size_t end = bytes_.find('\0', begin);
    if (end == std::string::npos) return std::nullopt;
    return bytes_.substr(begin, end - begin);
  }

  bool read_dynamic(const Elf64_Phdr& segment, std::vector<std::string>* needed) {
    std::vector<uint64_t> names;
    for (uint64_t n = 0; n < segment.p_filesz / sizeof(Elf64_Dyn); ++n) {
      const auto entry = at<Elf64_Dyn>(segment.p_offset + n * sizeof(Elf64_Dyn));
      if (!entry) return false;
      if (entry->d_tag == DT_NULL) break;
      const auto place = offset_of(entry->d_un.d_ptr);
      if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
      if (entry->d_tag == DT_STRTAB) strings_ = place.value_or(0);
      if (entry->d_tag == DT_SYMTAB) symbols_ = place.value_or(0);
      if (entry->d_tag == DT_HASH) hash_ = place.value_or(0);
    }
    for (uint64_t name : names) {
      const auto library = text(name);
      if (!library) return false;
      needed->push_back(*library);
    }
    return strings_ != 0 && symbols_ != 0 && hash_ != 0;
  }

  bool read_symbols(std::vector<std::string>* undefined, std::vector<std::string>* defined) const {
    const auto count = at<uint32_t>(hash_ + sizeof(uint32_t));  // as long as its chain
    if (!count) return false;
    for (uint64_t n = 1; n < *count; ++n) {
      const auto symbol = at<Elf64_Sym>(symbols_ + n * sizeof(Elf64_Sym));
      const auto name = symbol ? text(symbol->st_name) : std::nullopt;
      if (!name) return false;
      (symbol->st_shndx == SHN_UNDEF ? undefined : defined)->push_back(*name);
    }
    return true;
  }

  std::string bytes_;
  std::vector<Elf64_Phdr> loads_;
  uint64_t strings_ = 0, symbols_ = 0, hash_ = 0;
};

}  // namespace

Links links_of(const std::string& library, std::string_view entry) {
  Links links;
  std::vector<std::string> needed, undefined, defined;
  links.readable = Object(library).read(&needed, &undefined, &defined);
  for (const std::string& name : needed)
    if (!among(kLibraries, name)) links.forbidden.push_back(name);
  for (const std::string& name : undefined)
    if (!name.empty() && !is_allowed(name)) links.forbidden.push_back(name);
  // A C function of somebody else's name would be there to be called in its place.
  const std::string_view own[] = {entry,           "attune_candidate_backward",
                                  "run_attention", "_init",
                                  "_fini",         "_edata",
                                  "_end",          "__bss_start"};
  for (const std::string& name : defined)
    if (!name.empty() && !name.starts_with("_Z") &&
        std::find(std::begin(own), std::end(own), name) == std::end(own))
      links.defines.push_back(name);
  links.entry = std::find(defined.begin(), defined.end(), entry) != defined.end();
  return links;
}

}  // namespace attune::evolve
