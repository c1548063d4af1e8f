// From a plan to running kernels.
#pragma once

#include "src/cuda/device.hpp"
#include "src/rungs/plan.hpp"
#include "src/status.hpp"

namespace attune::jit {

// Compiles the plan's kernels, or takes them from the process's or the disk's cache, and loads them
// into the scope's context. Safe from many threads; legal while a stream is being captured.
Status prepare(const Plan& plan, const cuda::Scope& scope);

// prepare, then the plan's launches on the scope's stream. Blocks for nothing but a first compile.
// params.workspace holds at least plan.workspace_bytes; the plan has the rest.
Status forward(const Plan& plan, const Problem& problem, const Params& params,
               const cuda::Scope& scope);
// The same of a plan of a backward pass.
Status backward(const Plan& plan, const Problem& problem, const Params& params,
                const GradParams& grads, const cuda::Scope& scope);

}  // namespace attune::jit
