#include "config.h"

#include "ladder/fused.cuh"

namespace attune {

constexpr Problem kProblem{
    .dtype = DType::bf16,
    .dim = 128,
    .dim_v = 128,
    .causal = true,
    .window_left = 0,
    .window_right = 0,
    .mask = MaskKind::bf16,
    .block_mask_q = 1,
    .block_mask_k = 1,
    .softcap = true,
    .alibi = true,
    .sinks = true,
    .dropout = true,
};
constexpr LadderConfig kConfig{
    .rung = Ladder::fused,
    .block_q = 32,
};
constexpr Arch kArch{.cc = 120, .smem_block = 101376, .smem_sm = 102400};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(block_threads(kConfig))
    attune_fused(const __grid_constant__ KernelArgs args) {
  fused<kProblem, kConfig>(args);
}

}  // namespace attune
