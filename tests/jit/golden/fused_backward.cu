#include "config.h"

#include "tile/backward_rows.h"
#include "ladder/fused_backward.cuh"

namespace attune {

constexpr Problem kProblem{
    .pass = Pass::backward,
    .dtype = DType::bf16,
    .dim = 128,
    .dim_v = 128,
    .causal = true,
    .softcap = true,
    .dropout = true,
    .lse = true,
};
constexpr BackwardConfig kConfig{
    .part = BackwardPart::gradients,
    .block = 32,
    .vector = false,
};
constexpr Arch kArch{.cc = 90, .smem_block = 232448, .smem_sm = 233472};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(kBackwardThreads, 2)
    attune_dq(const __grid_constant__ GradientArgs args) {
  fused_dq<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(kBackwardThreads, 2)
    attune_dkv(const __grid_constant__ GradientArgs args) {
  fused_dkv<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(kStateThreads)
    attune_states(const __grid_constant__ GradientArgs args) {
  backward_states<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(kSinkThreads)
    attune_dsinks(const __grid_constant__ GradientArgs args) {
  backward_dsinks<kProblem, kConfig>(args);
}

}  // namespace attune
