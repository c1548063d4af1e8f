#include "src/jit/forward.hpp"

#include "src/jit/kernel.hpp"

namespace attune::jit {
namespace {

// Of a call: most have one.
constexpr size_t kMostUnits = 8;

struct Modules {
  const cuda::Module* of[kMostUnits];
  size_t count = 0;
};

Status modules_of(const Plan& plan, const cuda::Scope& scope, Modules* modules) {
  if (plan.units.size() > kMostUnits)
    return {ATTUNE_INTERNAL, plan.id + " has too many translation units"};
  for (const KernelSpec& unit : plan.units)
    if (Status s = module_of(unit, plan.id, scope, &modules->of[modules->count++]); !s.ok())
      return s;
  return {};
}

Status run(const Plan& plan, const Problem& problem, const Params& params, const GradParams& grads,
           const cuda::Scope& scope) {
  Modules modules;
  if (Status s = modules_of(plan, scope, &modules); !s.ok()) return s;
  return cuda::enqueue(plan, {modules.of, modules.count}, problem, params, grads,
                       static_cast<cuda::CUstream>(scope.stream()), plan.id);
}

}  // namespace

Status prepare(const Plan& plan, const cuda::Scope& scope) {
  Modules modules;
  return modules_of(plan, scope, &modules);
}

Status forward(const Plan& plan, const Problem& problem, const Params& params,
               const cuda::Scope& scope) {
  return run(plan, problem, params, {}, scope);
}

Status backward(const Plan& plan, const Problem& problem, const Params& params,
                const GradParams& grads, const cuda::Scope& scope) {
  return run(plan, problem, params, grads, scope);
}

}  // namespace attune::jit
