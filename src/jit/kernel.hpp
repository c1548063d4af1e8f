// From a spec to a kernel that can be launched: compiled once, kept on disk and in the process,
// loaded once a context.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "src/cuda/device.hpp"
#include "src/cuda/driver.hpp"
#include "src/jit/cache.hpp"
#include "src/rungs/plan.hpp"
#include "src/status.hpp"

namespace attune::jit {

// Called when a compile is about to start, on the thread that compiles: the library itself never
// prints.
using CompileHook = void (*)(const std::string& id);
void on_compile(CompileHook hook);  // null: nobody

// The name of a spec's entry on disk. Fails where there is no compiler: it is part of the name.
Status cache_key(const KernelSpec& spec, const std::string& source, Digest* key);

enum class Origin { disk, compiler };

// The compiled kernel from the disk cache; else from the compiler, and then into the cache. The
// process keeps nothing. Code of the caller's that does not compile is ATTUNE_INVALID_ARGUMENT.
Status obtain(const KernelSpec& spec, const std::string& id, CacheEntry* entry, Origin* origin);

struct Function {
  const char* name = nullptr;  // of the entry
  cuda::CUfunction handle = nullptr;
  mutable std::atomic<uint32_t> smem{48
                                     << 10};  // dynamic shared memory that it may be launched with
};

// A kernel in one context. One that the process keeps lives as long as it; another is unloaded.
struct Kernel {
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel();

  unsigned long long context = 0;  // its number: an address may come back as another context
  KernelSpec spec;
  cuda::CUmodule module = nullptr;
  static constexpr size_t kMaxFunctions = 4;
  Function functions[kMaxFunctions];

  const Function* find(const char* name) const;
};

// The plan's kernel in the scope's context: loaded already, or obtained and loaded now. One thread
// compiles a spec, others that want the same wait for it; different specs compile side by side.
Status kernel_of(const Plan& plan, const cuda::Scope& scope, const Kernel** kernel);

// Lets the function be launched with so much dynamic shared memory.
Status allow_smem(const Plan& plan, const Function& function, uint32_t bytes);

}  // namespace attune::jit
