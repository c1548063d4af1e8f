// The backward pass on tensor cores: what it takes, and the launches of a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/sm80/backward_config.h"
#include "src/rungs/samples.hpp"
#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

using C = MmaBackwardConfig;

const RungOf<C>& mma() {
  return dynamic_cast<const RungOf<C>&>(*rung_named("mma", Pass::backward));
}

Request request(DType dtype, int dim, int cc, int dim_v = 0) {
  Problem p = sample_problem(dtype, dim);
  p.pass = Pass::backward;
  p.lse = true;
  if (dim_v != 0) p.dim_v = dim_v;
  return sample_request(p, arch_of(cc), p.dim % 8 == 0 && p.dim_v % 8 == 0);
}

std::vector<std::string> entries(const Plan& plan) {
  std::vector<std::string> names;
  for (const cuda::Launch& launch : plan.launches) names.push_back(launch.entry);
  return names;
}

TEST(MmaBackward, RefusesWhatItCannotDo) {
  const Request r = request(DType::bf16, 64, 80);
  EXPECT_EQ(mma().refusal(r), "");
  EXPECT_EQ(mma().refusal(request(DType::f32, 64, 80)), "takes fp16 and bf16 only");
  EXPECT_NE(mma().refusal(request(DType::bf16, 64, 75)), "");
  Request other = r;
  other.problem.score_mod = true;
  EXPECT_EQ(mma().refusal(other), "the derivative of score_mod is not known");
  other = r;
  other.wanted.results = false;
  EXPECT_NE(mma().refusal(other), "");
  other = r;
  other.problem.seq_k = int64_t{1} << 31;
  EXPECT_NE(mma().cannot_run(other, mma().standard(other)), "");
}

TEST(MmaBackward, EveryHeadDimensionHasAConfigOnEveryGpu) {
  for (const int cc : {80, 86, 89, 90, 100, 120})
    for (int dim = 1; dim <= kMaxHeadDim; dim += dim % 8 == 0 ? 8 : 7)
      for (const int dim_v : {8, 40, 64, 128, 192, 256, dim})
        for (const DType dtype : {DType::f16, DType::bf16}) {
          const Request r = request(dtype, dim, cc, dim_v);
          const Config config = mma().standard(r);
          EXPECT_EQ(mma().cannot_run(r, config), "") << cc << " " << dim << " " << dim_v;
          EXPECT_EQ(mma().misfit(r, config), "") << cc << " " << dim << " " << dim_v;
        }
}

TEST(MmaBackward, AConfigsSizesAreChecked) {
  const auto reason = [](const C& c, int dim) -> std::string {
    const Request r = request(DType::f16, dim, 80);
    return invalid_reason(c, r.problem, r.arch);
  };
  EXPECT_EQ(reason({}, 64), "");
  EXPECT_EQ(reason({.warps = 9}, 64), "warps is not in 1..8");
  EXPECT_EQ(reason({.warp_keys = 48}, 64), "warp_keys is not 16 or 32");
  EXPECT_EQ(reason({.warp_rows = 8}, 64), "warp_rows is not 16 or 32");
  EXPECT_EQ(reason({.block_q = 48}, 64), "block_q or block_k is not a multiple of 32 up to 128");
  EXPECT_EQ(reason({.block_k = 160}, 64), "block_q or block_k is not a multiple of 32 up to 128");
  EXPECT_EQ(reason({.stages = 1}, 64), "stages is not in 2..4");
  EXPECT_EQ(reason({.blocks_sm = 5}, 64), "blocks_sm is not in 1..4");
  EXPECT_EQ(reason({}, 20), "16-byte copies need D and Dv in multiples of 16 bytes");
  EXPECT_EQ(reason({.warp_keys = 32}, 128),
            "the accumulators need more registers than a thread has");
  EXPECT_EQ(reason({}, 256), "the accumulators need more registers than a thread has");
  EXPECT_EQ(reason({.warps = 4, .separate = true}, 256), "");
  EXPECT_EQ(reason({.warps = 8, .separate = true}, 256),
            "the tiles need more shared memory than a block has");
  EXPECT_EQ(reason({.warps = 4, .block_q = 96, .blocks_sm = 2}, 128),
            "blocks_sm blocks need more shared memory than a multiprocessor has");
}

TEST(MmaBackward, StatesComeFirstAndThenWhatIsAskedFor) {
  Request r = request(DType::bf16, 64, 90);
  const Config config = mma().standard(r);
  const C c = typed<C>(config);
  Plan plan = mma().plan(r, config);
  EXPECT_EQ(entries(plan),
            (std::vector<std::string>{"attune_states", "attune_mma_dq", "attune_mma_dkv"}));
  const Problem& p = r.problem;
  EXPECT_EQ(plan.workspace_bytes, size_t(p.batch * p.heads_q * p.seq_q) * sizeof(RowState));
  EXPECT_EQ(plan.launches[1].grid, p.batch * p.heads_q * ceil_div(p.seq_q, c.own(false)));
  EXPECT_EQ(plan.launches[2].grid, p.batch * p.heads_kv * ceil_div(p.seq_k, c.own(true)));
  EXPECT_EQ(plan.launches[2].smem, uint32_t(backward_smem_bytes(c, p, true)));

  // The kernel of dQ also finds states anew, so it runs where dQ is not asked for.
  r.wanted.dq = false;
  plan = mma().plan(r, config);
  EXPECT_EQ(entries(plan),
            (std::vector<std::string>{"attune_states", "attune_mma_dq", "attune_mma_dkv"}));
  r.wanted = {.dk = false, .dv = false};
  plan = mma().plan(r, config);
  EXPECT_EQ(entries(plan), (std::vector<std::string>{"attune_states", "attune_mma_dq"}));

  // The kernels on CUDA cores take the states as the first kernel left them.
  r.problem.sinks = true;
  r.problem.mask = MaskKind::f32;
  r.wanted = {.dsinks = true, .dmask = {1, 1, p.seq_q, p.seq_k}};
  plan = mma().plan(r, config);
  EXPECT_EQ(entries(plan),
            (std::vector<std::string>{"attune_states", "attune_dsinks", "attune_dmask",
                                      "attune_mma_dq", "attune_mma_dkv"}));
}

TEST(MmaBackward, SeparateBlocksOfDkAndDvAreTwiceAsMany) {
  const Request r = request(DType::f16, 256, 90);
  const Config config = mma().standard(r);
  const C c = typed<C>(config);
  ASSERT_TRUE(c.separate);
  const Problem& p = r.problem;
  EXPECT_EQ(mma().plan(r, config).launches.back().grid,
            2 * p.batch * p.heads_kv * ceil_div(p.seq_k, c.own(true)));
}

TEST(MmaBackward, EmptyCallsLaunchWhatWritesZeros) {
  Request r = request(DType::f16, 64, 90);
  r.problem.seq_k = 0;
  EXPECT_EQ(entries(mma().plan(r, mma().standard(r))),
            (std::vector<std::string>{"attune_states", "attune_mma_dq"}));
  r.problem.seq_k = 100;
  r.problem.seq_q = 0;
  EXPECT_EQ(entries(mma().plan(r, mma().standard(r))),
            (std::vector<std::string>{"attune_mma_dkv"}));
}

TEST(MmaBackward, BatchInvariantConfigsDoNotKnowTheBatch) {
  Request few = request(DType::bf16, 128, 90);
  few.problem.batch = few.problem.heads_q = few.problem.heads_kv = 1;
  Request many = few;
  many.problem.batch = 64;
  EXPECT_NE(mma().standard(few), mma().standard(many));
  few.problem.batch_invariant = many.problem.batch_invariant = true;
  EXPECT_EQ(mma().standard(few), mma().standard(many));
}

}  // namespace
}  // namespace attune
