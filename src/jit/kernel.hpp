// From a spec to a kernel that can be launched: compiled once, kept on disk and in the process,
// loaded once a context.
#pragma once

#include <string>
#include <vector>

#include "src/cuda/device.hpp"
#include "src/cuda/launch.hpp"
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

// The compiled spec in the scope's context: loaded already, or obtained and loaded now. It lives as
// long as the process. One thread compiles a spec, others that want the same wait for it; different
// specs compile side by side. `id` names it in errors.
Status module_of(const KernelSpec& spec, const std::string& id, const cuda::Scope& scope,
                 const cuda::Module** module);

}  // namespace attune::jit
