// What compares results on a device compiles for every architecture; that it finds what differs is
// shown on a GPU (gpu_evaluator_test.cpp).
#include "evolve/worker/compare_kernels.hpp"

#include <gtest/gtest.h>

#include "tests/jit/compiler.hpp"

namespace attune::evolve {
namespace {

TEST(CompareKernels, CompileForEveryArch) {
  ATTUNE_NEEDS_NVRTC();
  for (const int cc : {75, 80, 86, 90, 120}) {
    std::string cubin;
    const Status s = compile_compare_kernels(cc, &cubin);
    EXPECT_TRUE(s.ok()) << cc << ": " << s.message;
    for (const char* name : {"worst_row_f32", "worst_row_f16", "same_words"})
      EXPECT_NE(cubin.find(name), std::string::npos) << cc << ": " << name;
    EXPECT_EQ(cubin.find("worst_row_bf16") != std::string::npos, cc >= 80) << cc;
  }
}

}  // namespace
}  // namespace attune::evolve
