#include "config.h"

#include "ladder/tiled.cuh"

namespace attune {

constexpr Problem kProblem{
    .dtype = DType::f16,
    .dim = 40,
    .dim_v = 8,
    .mask = MaskKind::boolean,
    .ragged = true,
};
constexpr LadderConfig kConfig{
    .rung = Ladder::tiled,
    .vector = false,
};
constexpr Arch kArch{.cc = 86, .smem_block = 101376, .smem_sm = 102400};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(block_threads(kConfig))
    attune_scores(const __grid_constant__ KernelArgs args) {
  tiled_scores<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(block_threads(kConfig))
    attune_softmax(const __grid_constant__ KernelArgs args) {
  tiled_softmax<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(block_threads(kConfig))
    attune_output(const __grid_constant__ KernelArgs args) {
  tiled_output<kProblem, kConfig>(args);
}

}  // namespace attune
