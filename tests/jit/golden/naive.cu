#include "config.h"

#include "ladder/naive.cuh"

namespace attune {

constexpr Problem kProblem{
    .dim = 64,
    .dim_v = 64,
};
constexpr LadderConfig kConfig{
    .rung = Ladder::naive,
    .vector = false,
};
constexpr Arch kArch{.cc = 75, .smem_block = 65536, .smem_sm = 65536};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(block_threads(kConfig))
    attune_naive(const __grid_constant__ KernelArgs args) {
  naive<kProblem, kConfig>(args);
}

}  // namespace attune
