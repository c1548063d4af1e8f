// Our kernels on the emulated GPU, through the C ABI: selection, emission, plans, tensor maps and
// launches are the library's own; the compiler is g++. ./x emulate runs more of them.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "src/check/cuda_cases.hpp"

namespace attune::check {
namespace {

// The library will ask for libcuda.so.1, and get the one that is loaded already.
bool emulate() {
  static const bool ready = [] {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "emulator";
    setenv("ATTUNE_NVRTC", (folder / "libnvrtc.so.13.0").c_str(), 1);
    if (dlopen((folder / "libcuda.so.1").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return true;
    ADD_FAILURE() << dlerror();
    return false;
  }();
  return ready;
}

Case call(DType dtype, int64_t seq_q, int64_t seq_k, int dim, int64_t heads_kv = 2) {
  Case c;
  Problem& p = c.problem;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = 2;
  p.heads_kv = heads_kv;
  p.seq_q = seq_q;
  p.seq_k = seq_k;
  p.dim = p.dim_v = dim;
  p.lse = true;
  c.seed = 1;
  return c;
}

Case causal(Case c) {
  c.problem.causal = true;
  c.problem.alignment = Alignment::bottom_right;
  return c;
}

Case with_dropout_and_lengths(Case c) {
  c.problem.dropout = c.problem.key_lengths = true;
  c.dropout_p = 0.3f;
  c.key_lengths = {int32_t(c.problem.seq_k) - 1, 5};
  return c;
}

Case with_blocks(Case c) {
  c.problem.block_mask_q = 32;
  c.problem.block_mask_k = 64;
  return c;
}

Case with_window(Case c, int64_t left, int64_t right) {
  c.problem.window_left = left;
  c.problem.window_right = right;
  return c;
}

// A mask that all sequences and rows share, with keys that it forbids.
Case with_bias_and_sinks(Case c) {
  c.problem.mask = MaskKind::f32;
  c.mask_broadcast = 0b0101;
  c.infinite_mask = true;
  c.problem.sinks = true;
  c.problem.softcap = true;
  c.softcap = 5;
  return c;
}

struct Sample {
  const char* name;
  attune_mode mode;
  Case call;
};

class EmulatedKernel : public testing::TestWithParam<Sample> {};

TEST_P(EmulatedKernel, AgreesWithTheReference) {
  ASSERT_TRUE(emulate());
  CudaOptions options;
  options.repeat = true;
  const Verdict verdict = run_case_cuda(GetParam().call, GetParam().mode, options);
  EXPECT_TRUE(verdict.ok) << GetParam().call.name() << ": " << verdict.why;
}

class EmulatedGradients : public testing::TestWithParam<Sample> {};

TEST_P(EmulatedGradients, AgreeWithTheReference) {
  ASSERT_TRUE(emulate());
  CudaOptions options;
  options.repeat = true;
  const Verdict verdict = run_gradients_cuda(GetParam().call, {GetParam().mode}, options).front();
  EXPECT_TRUE(verdict.ok) << GetParam().call.name() << ": " << verdict.why;
}

INSTANTIATE_TEST_SUITE_P(
    Rungs, EmulatedGradients,
    testing::Values(
        Sample{"fused", ATTUNE_FUSED,
               with_dropout_and_lengths(causal(call(DType::f16, 40, 70, 64, 1)))},
        Sample{"fused_blocks", ATTUNE_FUSED, with_blocks(call(DType::f32, 70, 100, 33))},
        Sample{"fused_mask", ATTUNE_FUSED, with_bias_and_sinks(call(DType::bf16, 40, 50, 20, 1))},
        Sample{"fused_window", ATTUNE_FUSED, with_window(call(DType::f16, 70, 40, 16), 9, 3)},
        Sample{"fused_vast_window", ATTUNE_FUSED,
               with_window(causal(call(DType::f16, 10, 40, 16)), INT64_MAX, INT64_MAX - 1)},
        Sample{"mma", ATTUNE_MMA, causal(call(DType::f16, 150, 170, 128, 1))},
        Sample{"mma_vast_window", ATTUNE_MMA,
               with_window(call(DType::f16, 70, 40, 16), INT64_MAX, INT64_MAX)},
        Sample{"mma_lengths", ATTUNE_MMA, with_dropout_and_lengths(call(DType::bf16, 40, 70, 64))},
        Sample{"mma_mask", ATTUNE_MMA, with_bias_and_sinks(call(DType::bf16, 40, 50, 20, 1))},
        Sample{"mma_separate", ATTUNE_MMA, call(DType::f16, 33, 70, 256)}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Rungs, EmulatedKernel,
    testing::Values(
        Sample{"naive", ATTUNE_NAIVE, with_dropout_and_lengths(call(DType::bf16, 7, 33, 20))},
        Sample{"tiled", ATTUNE_TILED, causal(call(DType::f32, 70, 70, 33))},
        Sample{"fused", ATTUNE_FUSED,
               with_dropout_and_lengths(causal(call(DType::f16, 40, 70, 64)))},
        Sample{"mma", ATTUNE_MMA,
               with_dropout_and_lengths(causal(call(DType::bf16, 70, 150, 64, 1)))},
        Sample{"mma_f32", ATTUNE_MMA, causal(call(DType::f32, 65, 130, 64))},
        Sample{"mma_split", ATTUNE_MMA, call(DType::f16, 1, 700, 128, 1)},
        Sample{"wgmma", ATTUNE_WGMMA, causal(call(DType::f16, 200, 300, 128))},
        Sample{"wgmma_blocks", ATTUNE_WGMMA, with_blocks(call(DType::bf16, 150, 200, 64))},
        Sample{"wgmma_copier", ATTUNE_WGMMA,
               with_dropout_and_lengths(call(DType::f16, 70, 150, 33, 1))},
        Sample{"wgmma_f32", ATTUNE_WGMMA, causal(call(DType::f32, 130, 200, 64))}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace attune::check
