// A checked call on a CUDA device: the context it runs in, the kernel it gets, and its launch.
#pragma once

#include <cstddef>

#include "src/api/validate.hpp"
#include "src/cuda/device.hpp"
#include "src/select/cuda_select.hpp"
#include "src/status.hpp"

namespace attune {

// Enters the call's context and picks its kernel. `workspace_bytes`: what selection may count on.
Status choose_on_cuda(const Call& call, size_t workspace_bytes, cuda::Scope* scope,
                      CudaChoice* choice);

Status forward_on_cuda(const Call& call);
Status prepare_on_cuda(const Call& call);

// What the call would like to have.
inline constexpr size_t kUnlimitedWorkspace = ~size_t{0};
Status workspace_on_cuda(const Call& call, size_t* bytes);

}  // namespace attune
