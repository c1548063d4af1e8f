// From a checked call to its work: which kernel it gets, and the run. What every function of the C
// ABI that computes goes through.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "src/api/validate.hpp"
#include "src/cuda/device.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/select.hpp"
#include "src/status.hpp"

namespace attune {

// What a call would like to have.
inline constexpr size_t kUnlimitedWorkspace = ~size_t{0};

struct PlannedCall {
  Call call;
  CpuChoice cpu;                     // on the CPU
  std::shared_ptr<const Plan> cuda;  // on a device; none where there is nothing to compute

  size_t workspace_bytes() const { return cuda != nullptr ? cuda->workspace_bytes : 0; }
};

// Chooses the kernel of planned->call. It may count on so many bytes of workspace.
Status choose_kernel(size_t workspace_bytes, PlannedCall* planned);

// Runs the call with its workspace. What compiles a kernel compiles it now.
Status run(const PlannedCall& planned);
// Compiles what `run` would, or takes it from the cache.
Status prepare(const PlannedCall& planned);

// Both at once, for a call that is made once.
Status choose_and_run(PlannedCall* planned);

// Puts the call into the plan's place, if it is the same but for its memory and scalars. Where the
// lengths of sequences are read here, they may be others too.
Status take_other_call(const Call& call, PlannedCall* planned);

// The selection for a call on a device, with all reasons in words, for `explain`.
Status choose_on_cuda(const Call& call, size_t workspace_bytes, cuda::Scope* scope,
                      CudaChoice* choice);

}  // namespace attune
