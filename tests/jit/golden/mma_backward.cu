#include "config.h"

#include "tile/backward_rows.h"
#include "sm80/backward.cuh"

namespace attune {

constexpr Problem kProblem{
    .pass = Pass::backward,
    .dtype = DType::bf16,
    .dim = 128,
    .dim_v = 128,
    .causal = true,
    .mask = MaskKind::f32,
    .softcap = true,
    .dropout = true,
    .lse = true,
};
constexpr MmaBackwardConfig kConfig{
    .warps = 4,
    .separate = true,
    .vector = false,
};
constexpr Arch kArch{.cc = 90, .smem_block = 232448, .smem_sm = 233472};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_sm)
    attune_mma_dq(const __grid_constant__ GradientArgs args) {
  mma_dq<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_sm)
    attune_mma_dkv(const __grid_constant__ GradientArgs args) {
  mma_dkv<kProblem, kConfig>(args);
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
