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
    attune_mode chosen;
    cpu::CpuConfig config;
    const Status slow = select(p, mode, threads, &choice);
    const Status quick = select_quickly(p, mode, threads, &chosen, &config);
    ASSERT_EQ(slow.code, quick.code);
    EXPECT_EQ(slow.message, quick.message);
    if (!slow.ok()) continue;
    EXPECT_EQ(chosen, choice.mode);
    EXPECT_EQ(config, choice.config);
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
