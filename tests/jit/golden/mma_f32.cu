#include "config.h"

#include "sm80/mma_f32.cuh"
#include "sm80/combine.cuh"

namespace attune {

constexpr Problem kProblem{
    .dim = 64,
    .dim_v = 64,
};
constexpr MmaConfig kConfig{
    .q_registers = true,
    .split_kv = true,
};
constexpr Arch kArch{.cc = 80, .smem_block = 166912, .smem_sm = 167936};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(kSplitThreads)
    attune_split(const __grid_constant__ KernelArgs args) {
  split_operands<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_sm)
    attune_mma(const __grid_constant__ KernelArgs args) {
  mma_f32_forward<kProblem, kConfig>(args);
}

extern "C" __global__ void __launch_bounds__(kCombineThreads)
    attune_combine(const __grid_constant__ KernelArgs args) {
  mma_combine<kProblem, kConfig>(args);
}

}  // namespace attune
