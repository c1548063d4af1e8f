#include "config.h"

#define ATTUNE_SCORE_MOD
namespace attune {
__device__ inline float score_mod(float score, int b, int h, int i, int j, const void* data) {
#line 1 "score_mod"
const float* bias = static_cast<const float*>(data);
return score + bias[h];
}
}  // namespace attune

#define ATTUNE_MASK_MOD
namespace attune {
__device__ inline bool mask_mod(int b, int h, int i, int j, const void* data) {
#line 1 "mask_mod"
return i - j < 100;
}
}  // namespace attune

#line 21 "attune_kernel.cu"
#include "sm80/mma.cuh"

namespace attune {

constexpr Problem kProblem{
    .dtype = DType::bf16,
    .dim = 128,
    .dim_v = 128,
    .score_mod = true,
    .mask_mod = true,
};
constexpr MmaConfig kConfig{
    .warps_q = 8,
    .blocks_sm = 2,
    .pack_gqa = true,
};
constexpr Arch kArch{.cc = 90, .smem_block = 232448, .smem_sm = 233472};
static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\0');

extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_sm)
    attune_mma(const __grid_constant__ KernelArgs args) {
  mma_forward<kProblem, kConfig>(args);
}

}  // namespace attune
