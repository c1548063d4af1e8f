#include "config.h"

#include "ladder/fused_dmask.cuh"

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
constexpr BackwardConfig kConfig{
    .part = BackwardPart::dmask,
    .block = 32,
};
constexpr Arch kArch{.cc = 90, .smem_block = 232448, .smem_sm = 233472};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(kBackwardThreads, 2)
    attune_dmask(const __grid_constant__ GradientArgs args) {
  fused_dmask<kProblem, kConfig>(args);
}

}  // namespace attune
