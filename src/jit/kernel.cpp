#include "src/jit/kernel.hpp"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "src/jit/dump.hpp"
#include "src/jit/source.hpp"
#include "src/jit/user_text.hpp"

namespace attune::jit {
namespace {

constexpr int kKeySchema = 1;  // changes with whatever is compiled differently from the same source

std::atomic<CompileHook> g_hook{nullptr};

std::vector<std::string> extra_options() {
  if (dump_dir().empty()) return {};
  return {"-lineinfo"};  // for a profiler; the code stays the same
}

// Which of the caller's parts the compiler's first error is in.
std::string guilty_part(const KernelSpec& spec, const std::string& errors) {
  for (const char* name : {kScoreModName, kMaskModName})
    if (errors.starts_with(fmt::format("{}(", name))) return name;
  if (spec.score_mod.empty()) return kMaskModName;
  return spec.mask_mod.empty() ? kScoreModName
                               : fmt::format("{} or {}", kScoreModName, kMaskModName);
}

Status compile_spec(const KernelSpec& spec, const std::string& id, const std::string& source,
                    CacheEntry* entry, std::string* log) {
  if (const CompileHook hook = g_hook.load()) hook(id);
  Compiled compiled;
  Status status = compile(source, spec.arch.cc, extra_options(), &compiled);
  *log = compiled.log;
  if (status.ok()) {
    *entry = {.id = id,
              .arch = architecture(spec.arch.cc),
              .seconds = compiled.seconds,
              .cpu_seconds = compiled.cpu_seconds,
              .resources = std::move(compiled.resources),
              .warnings = std::move(compiled.warnings),
              .cubin = std::move(compiled.cubin)};
    return {};
  }
  const std::string errors = errors_of(compiled.log, 800);
  if ((spec.score_mod.empty() && spec.mask_mod.empty()) || errors.empty()) return status;
  return Status::invalid(
      fmt::format("{} does not compile:\n{}", guilty_part(spec, errors), errors));
}

Status check_user_text(const KernelSpec& spec) {
  const std::pair<const char*, const std::string&> parts[] = {{kScoreModName, spec.score_mod},
                                                              {kMaskModName, spec.mask_mod}};
  for (const auto& [name, text] : parts)
    if (const std::string why = why_not_a_body(text); !why.empty())
      return Status::invalid(fmt::format("{} does not compile: {}", name, why));
  return {};
}

// ---- the process's own cache ----

// A spec that is being obtained, or was: the cubin stays for other contexts.
struct Slot {
  std::mutex mutex;
  bool obtained = false;
  CacheEntry entry;
};

struct SpecHash {
  size_t operator()(const KernelSpec& spec) const { return hash_of(spec); }
};

// One that the process keeps lives as long as it.
struct Kernel {
  unsigned long long context = 0;  // its number: an address may come back as another context
  KernelSpec spec;
  cuda::Module module;
};

struct Store {
  std::shared_mutex kernels_mutex;
  std::unordered_multimap<size_t, std::unique_ptr<Kernel>> kernels;  // by hash of context and spec
  std::mutex slots_mutex;
  std::unordered_map<KernelSpec, std::unique_ptr<Slot>, SpecHash> slots;
};

// Never destroyed: at the end of the process other threads may still launch, and the driver may be
// gone before us.
Store& store() {
  static Store* const the_store = new Store;
  return *the_store;
}

size_t kernel_hash(const KernelSpec& spec, unsigned long long context) {
  return hash_of(spec) ^ size_t(context * 0x9e3779b97f4a7c15);
}

const cuda::Module* find_kernel(const KernelSpec& spec, unsigned long long context) {
  Store& s = store();
  std::shared_lock lock(s.kernels_mutex);
  const auto [begin, end] = s.kernels.equal_range(kernel_hash(spec, context));
  for (auto it = begin; it != end; ++it)
    if (it->second->context == context && it->second->spec == spec) return &it->second->module;
  return nullptr;
}

const cuda::Module* keep_kernel(std::unique_ptr<Kernel> kernel) {
  Store& s = store();
  std::unique_lock lock(s.kernels_mutex);
  const cuda::Module* result = &kernel->module;
  s.kernels.emplace(kernel_hash(kernel->spec, kernel->context), std::move(kernel));
  return result;
}

Slot& slot_of(const KernelSpec& spec) {
  Store& s = store();
  std::lock_guard lock(s.slots_mutex);
  std::unique_ptr<Slot>& slot = s.slots[spec];
  if (slot == nullptr) slot = std::make_unique<Slot>();
  return *slot;
}

}  // namespace

void on_compile(CompileHook hook) { g_hook = hook; }

Status cache_key(const KernelSpec& spec, const std::string& source, Digest* key) {
  const NvrtcChoice& compiler = nvrtc();
  if (!compiler.problem.empty()) return Status::unsupported(compiler.problem);
  Sha256 hash;
  hash.add_field(fmt::format("attune kernel {} for {}", kKeySchema, spec.arch.cc));
  hash.add_field(compiler.identity);
  hash.add_field(compiler_build());
  for (const std::string& option : extra_options()) hash.add_field(option);
  const Headers& all = headers();
  for (const size_t i : included_headers(source)) {
    hash.add_field(all.names[i]);
    hash.add_field(hex(all.digests[i]));
  }
  hash.add_field(source);
  *key = hash.finish();
  return {};
}

Status obtain(const KernelSpec& spec, const std::string& id, CacheEntry* entry, Origin* origin) {
  if (Status s = check_user_text(spec); !s.ok()) return s;
  const std::string source = emit(spec);
  Digest key;
  if (Status s = cache_key(spec, source, &key); !s.ok()) return s;
  const std::string dir = cache_dir();
  if (dir.empty())
    warn_cache("no kernel cache: ATTUNE_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset");
  std::string log;
  *origin = Origin::disk;
  if (dir.empty() || !read_entry(dir, key, entry)) {
    *origin = Origin::compiler;
    const Status status = compile_spec(spec, id, source, entry, &log);
    if (!status.ok()) {
      dump(id, key, source, {}, log);
      return status;
    }
    if (!dir.empty())
      if (const std::string why = write_entry(dir, key, *entry); !why.empty())
        warn_cache(fmt::format("the kernel cache cannot be {}, so every process compiles anew: {}",
                               why_refused(dir).empty() ? "written" : "used", why));
  }
  dump(id, key, source, entry->cubin, log);
  return {};
}

Status module_of(const KernelSpec& spec, const std::string& id, const cuda::Scope& scope,
                 const cuda::Module** module) {
  const cuda::Driver& d = *cuda::driver();  // the scope has entered a context, so there is one
  unsigned long long context = 0;
  ATTUNE_CUDA_TRY(d, cuCtxGetId, static_cast<cuda::CUcontext>(scope.context()), &context);
  if (*module = find_kernel(spec, context); *module != nullptr) return {};

  Slot& slot = slot_of(spec);
  std::lock_guard lock(slot.mutex);
  if (*module = find_kernel(spec, context); *module != nullptr) return {};
  if (!slot.obtained) {
    Origin origin;
    if (Status s = obtain(spec, id, &slot.entry, &origin); !s.ok()) return s;
    slot.obtained = true;
  }
  auto fresh = std::make_unique<Kernel>();
  fresh->context = context;
  fresh->spec = spec;
  if (Status s = fresh->module.load(slot.entry.cubin, entries(spec), id); !s.ok()) return s;
  *module = keep_kernel(std::move(fresh));
  return {};
}

}  // namespace attune::jit
