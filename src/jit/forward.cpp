#include "src/jit/forward.hpp"

#include <fmt/format.h>

#include "src/jit/kernel.hpp"

namespace attune::jit {
namespace {

Status launch(const Plan& plan, const Launch& shape, const Kernel& kernel, KernelArgs* args,
              cuda::CUstream stream) {
  const Function* function = kernel.find(shape.entry);
  if (function == nullptr)
    return {ATTUNE_INTERNAL, fmt::format("{} has no kernel {}", plan.id, shape.entry)};
  if (shape.smem > function->smem.load(std::memory_order_acquire))
    if (Status s = allow_smem(plan, *function, shape.smem); !s.ok()) return s;
  void* parameters[] = {args};
  cuda::CUlaunchAttribute early{};
  early.id = cuda::kProgrammaticStreamSerialization;
  early.number = 1;
  const cuda::CUlaunchConfig config{
      {shape.grid, 1, 1}, {shape.block, 1, 1}, shape.smem, stream, &early, shape.early ? 1u : 0u};
  const cuda::CUresult result =
      cuda::driver()->cuLaunchKernelEx(&config, function->handle, parameters, nullptr);
  if (result == cuda::kSuccess) return {};
  return cuda::cuda_status(
      result, "cuLaunchKernelEx",
      fmt::format("{} ({}, {} blocks of {} threads, {} bytes of shared memory)", plan.id,
                  shape.entry, shape.grid, shape.block, shape.smem));
}

}  // namespace

Status prepare(const Plan& plan, const cuda::Scope& scope) {
  const Kernel* kernel = nullptr;
  return kernel_of(plan, scope, &kernel);
}

Status forward(const Plan& plan, const Problem& problem, const Params& params,
               const cuda::Scope& scope) {
  const Kernel* kernel = nullptr;
  if (Status s = kernel_of(plan, scope, &kernel); !s.ok()) return s;
  KernelArgs args{problem, params};
  args.params.splits = plan.splits;
  args.params.divisors = plan.divisors;
  for (const Launch& shape : plan.launches)
    if (Status s = launch(plan, shape, *kernel, &args, static_cast<cuda::CUstream>(scope.stream()));
        !s.ok())
      return s;
  return {};
}

}  // namespace attune::jit
