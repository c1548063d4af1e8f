// The fused backward pass of the CPU: see backward_inl.hpp.
#pragma once

#include "kernels/params.h"
#include "src/cpu/config.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/pool.hpp"
#include "src/status.hpp"

namespace attune::cpu {

// Reads out and lse, which hold the results of the forward pass. Precondition:
// invalid_reason(config, problem, table's arch) is empty. Fails only for want of memory. The bits
// are the same from run to run with as many threads.
Status fused_backward(const IsaTable& table, const Problem& problem, const Params& params,
                      const GradParams& grads, const CpuConfig& config, const Executor& executor);

}  // namespace attune::cpu
