#include "src/select/select.hpp"

#include <gtest/gtest.h>

#include "src/cpu/fused.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

Problem problem(int64_t seq, bool causal = false) {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = seq;
  p.dim = p.dim_v = 64;
  p.causal = causal;
  return p;
}

void expect_as_select(const Problem& p, attune_mode mode, int threads) {
  for (int again = 0; again < 2; ++again) {  // asked, and remembered
    Choice choice;
    CpuChoice quickly;
    const Status slow = select(p, mode, threads, &choice);
    const Status quick = select_quickly(p, mode, threads, &quickly);
    ASSERT_EQ(slow.code, quick.code);
    EXPECT_EQ(slow.message, quick.message);
    if (!slow.ok()) continue;
    EXPECT_EQ(quickly, static_cast<const CpuChoice&>(choice));
  }
}

TEST(SelectQuickly, ChoosesAsSelect) {
  for (int round = 0; round < 2; ++round) {
    expect_as_select(problem(16), ATTUNE_AUTO, 1);
    expect_as_select(problem(4096), ATTUNE_AUTO, 1);
    expect_as_select(problem(4096), ATTUNE_AUTO, 64);
    expect_as_select(problem(4096, true), ATTUNE_AUTO, 64);
    expect_as_select(problem(4096, true), ATTUNE_NAIVE, 64);
    expect_as_select(problem(4096, true), ATTUNE_WGMMA, 64);  // not here
    expect_as_select(problem(4096, true), ATTUNE_NAIVE, 64);
  }
}

// Few rows of 16-bit keys are read in place where vectors are long and a row fills some of them.
TEST(DefaultCpuConfig, DecodingReadsKeysInPlace) {
  Problem p = problem(4096);
  p.seq_q = 1;
  const cpu::CpuArch avx512{16, 32}, avx2{8, 16}, sse4{4, 16};
  const auto rows = [&](DType dtype, int dim, const cpu::CpuArch& arch) {
    p.dtype = dtype;
    p.dim = p.dim_v = dim;
    return default_cpu_config(p, arch, 2).dot_rows;
  };
  for (const DType dtype : {DType::f16, DType::bf16}) {
    EXPECT_EQ(rows(dtype, 64, avx512), 4);
    EXPECT_EQ(rows(dtype, 63, avx512), 2);
    EXPECT_EQ(rows(dtype, 32, avx2), 4);
    EXPECT_EQ(rows(dtype, 128, sse4), 2);
  }
  EXPECT_EQ(rows(DType::f32, 128, avx512), 2);
}

// What a thread remembers must not outlive what it depends on.
TEST(SelectQuickly, FollowsTheInstructionSetAndTheTable) {
  const Problem p = problem(4096);
  for (const std::string& isa : cpu::isa_names()) {
    ASSERT_TRUE(cpu::force_isa(isa));
    expect_as_select(p, ATTUNE_AUTO, 2);
  }
  cpu::force_isa("");
  for (const bool use : {false, true}) {
    use_tuned(use);
    expect_as_select(p, ATTUNE_AUTO, 2);
  }
  reload_tuned();
  expect_as_select(p, ATTUNE_AUTO, 2);
}

}  // namespace
}  // namespace attune
