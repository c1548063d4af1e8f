#include "src/select/cuda_select.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

constexpr int kArchs[] = {75, 80, 86, 89, 90, 100, 120, 121};

Problem problem(DType dtype, int dim = 64) {
  Problem p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = 1024;
  p.dim = p.dim_v = dim;
  return p;
}

CudaRequest request(const Problem& p, int cc, attune_mode mode = ATTUNE_AUTO,
                    size_t workspace = SIZE_MAX) {
  return {{p, arch_of(cc), {}, workspace, "", ""}, mode};
}

CudaChoice choose(const CudaRequest& r) {
  CudaChoice choice;
  const Status status = select_cuda(r, &choice);
  EXPECT_TRUE(status.ok()) << status.message;
  return choice;
}

std::string reason_of(const CudaChoice& choice, attune_mode mode) {
  for (const Candidate& c : choice.candidates)
    if (c.mode == mode) return c.reason;
  return "not listed";
}

// ---- choice ----

TEST(CudaSelect, TensorCoresFrom80) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int cc : {80, 90, 120}) {
      const CudaChoice choice = choose(request(problem(dtype), cc));
      const attune_mode best = cc == 90 ? ATTUNE_WGMMA : ATTUNE_MMA;
      EXPECT_EQ(choice.mode, best);
      EXPECT_EQ(reason_of(choice, best), "");
      EXPECT_EQ(reason_of(choice, ATTUNE_FUSED), std::string("slower than ") + mode_name(best));
      EXPECT_EQ(reason_of(choice, ATTUNE_REFERENCE), "the float64 reference runs on the CPU");
    }
}

TEST(CudaSelect, CudaCoresOn75) {
  const CudaChoice choice = choose(request(problem(DType::bf16), 75));
  EXPECT_EQ(choice.mode, ATTUNE_FUSED);
  EXPECT_EQ(reason_of(choice, ATTUNE_MMA), "needs compute capability 8.0; this device has 7.5");
  EXPECT_EQ(reason_of(choice, ATTUNE_TILED), "slower than fused");
  ASSERT_EQ(choice.plan.launches.size(), 1u);
  EXPECT_STREQ(choice.plan.launches[0].entry, "attune_fused");
}

TEST(CudaSelect, CandidatesComeFastestFirst) {
  const CudaChoice choice = choose(request(problem(DType::f16), 90));
  constexpr attune_mode kOrder[] = {ATTUNE_WGMMA, ATTUNE_MMA,   ATTUNE_FUSED,
                                    ATTUNE_TILED, ATTUNE_NAIVE, ATTUNE_REFERENCE};
  ASSERT_EQ(choice.candidates.size(), std::size(kOrder));
  for (size_t n = 0; n < std::size(kOrder); ++n) EXPECT_EQ(choice.candidates[n].mode, kOrder[n]);
}

TEST(CudaSelect, StrictFp32StaysOnCudaCores) {
  Problem p = problem(DType::f32);
  p.strict_fp32 = true;
  const CudaChoice choice = choose(request(p, 90));
  EXPECT_EQ(choice.mode, ATTUNE_FUSED);
  EXPECT_EQ(reason_of(choice, ATTUNE_MMA), "strict_fp32 keeps fp32 on CUDA cores");

  CudaChoice refused;
  const Status status = select_cuda(request(p, 90, ATTUNE_MMA), &refused);
  EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
  EXPECT_EQ(status.message,
            "mode mma cannot run this problem: strict_fp32 keeps fp32 on CUDA cores");

  p.dtype = DType::f16;  // it is about fp32 alone
  EXPECT_EQ(choose(request(p, 80)).mode, ATTUNE_MMA);
}

TEST(CudaSelect, ByName) {
  for (attune_mode mode : {ATTUNE_NAIVE, ATTUNE_TILED, ATTUNE_FUSED, ATTUNE_MMA, ATTUNE_WGMMA}) {
    const CudaChoice choice = choose(request(problem(DType::bf16), 90, mode));
    EXPECT_EQ(choice.mode, mode);
    for (const Candidate& c : choice.candidates) {
      if (c.mode == ATTUNE_REFERENCE) continue;
      EXPECT_EQ(c.reason,
                c.mode == mode ? "" : std::string("not asked for: mode is ") + mode_name(mode));
    }
  }
}

TEST(CudaSelect, RefusalsNameTheReason) {
  CudaChoice choice;
  Status status = select_cuda(request(problem(DType::f16), 75, ATTUNE_MMA), &choice);
  EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
  EXPECT_EQ(status.message,
            "mode mma cannot run this problem: needs compute capability 8.0; this device has 7.5");
  status = select_cuda(request(problem(DType::f16), 90, ATTUNE_REFERENCE), &choice);
  EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
  EXPECT_EQ(status.message,
            "mode reference cannot run this problem: the float64 reference runs on the CPU");
  status = select_cuda(request(problem(DType::f16), 70), &choice);
  EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
}

// ---- the backward pass ----

CudaRequest backward_request(DType dtype, int dim, int cc, attune_mode mode = ATTUNE_AUTO) {
  Problem p = problem(dtype, dim);
  p.pass = Pass::backward;
  p.lse = true;
  CudaRequest r = request(p, cc, mode);
  r.layout.rows16 = dim * (dtype == DType::f32 ? 4 : 2) % 16 == 0;
  return r;
}

std::vector<std::string> entries_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const cuda::Launch& launch : plan.launches) names.emplace_back(launch.entry);
  return names;
}

using Names = std::vector<std::string>;

TEST(CudaSelect, BackwardRunsEverywhereInEveryDtypeAndWidth) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int dim = 1; dim <= 256; dim += dim < 8 ? 1 : 31)
      for (int cc : kArchs) {
        const CudaChoice choice = choose(backward_request(dtype, dim, cc, ATTUNE_FUSED));
        EXPECT_EQ(choice.mode, ATTUNE_FUSED);
        EXPECT_EQ(entries_of(choice.plan), (Names{"attune_states", "attune_dq", "attune_dkv"}));
        EXPECT_EQ(choice.plan.workspace_bytes, 2u * 8 * 1024 * sizeof(RowState));
        EXPECT_NE(choice.plan.id.find(".attn_bwd."), std::string::npos) << choice.plan.id;
      }
}

TEST(CudaSelect, BackwardLaunchesWhatIsAskedFor) {
  CudaRequest r = backward_request(DType::f16, 64, 90, ATTUNE_FUSED);
  r.wanted.dq = r.wanted.dk = r.wanted.dv = false;
  EXPECT_EQ(entries_of(choose(r).plan), Names{"attune_states"});
  r.wanted.dv = true;
  EXPECT_EQ(entries_of(choose(r).plan), (Names{"attune_states", "attune_dkv"}));
  r.wanted.dsinks = r.problem.sinks = true;
  r.problem.mask = MaskKind::f16;
  r.wanted.dmask = {1, 8, 1024, 1};
  const Plan plan = choose(r).plan;
  EXPECT_EQ(entries_of(plan),
            (Names{"attune_states", "attune_dkv", "attune_dsinks", "attune_dmask"}));
  EXPECT_EQ(plan.units.size(), 2u) << "the mask's gradient has a translation unit of its own";
  EXPECT_EQ(plan.launches[3].unit, 1u);
  EXPECT_EQ(plan.launches[3].grid, 8u * 1024 / 32);
  // Without queries, the gradients of K and V are written nevertheless.
  r = backward_request(DType::f16, 64, 90, ATTUNE_FUSED);
  r.problem.seq_q = 0;
  EXPECT_EQ(entries_of(choose(r).plan), Names{"attune_dkv"});
  EXPECT_EQ(choose(r).plan.workspace_bytes, 0u);
}

TEST(CudaSelect, BackwardRefusalsNameTheReason) {
  CudaChoice choice;
  const auto refuses = [&](const CudaRequest& r, attune_status code, const std::string& message) {
    const Status status = select_cuda(r, &choice);
    EXPECT_EQ(status.code, code);
    EXPECT_EQ(status.message, message);
  };
  refuses(backward_request(DType::f32, 64, 90, ATTUNE_NAIVE), ATTUNE_UNSUPPORTED,
          "no backward pass of mode naive on CUDA");
  CudaRequest r = backward_request(DType::f32, 64, 90, ATTUNE_FUSED);
  r.wanted.results = false;
  refuses(r, ATTUNE_UNSUPPORTED,
          "mode fused cannot run this problem: reads the forward pass's results, but out and lse "
          "are not both given");
  r = backward_request(DType::f32, 64, 90, ATTUNE_FUSED);
  r.problem.score_mod = true;
  r.score_mod = "return score;";
  refuses(r, ATTUNE_UNSUPPORTED,
          "mode fused cannot run this problem: the derivative of score_mod is not known");
  r = backward_request(DType::f32, 64, 90, ATTUNE_FUSED);
  r.workspace_bytes = 4096;
  refuses(r, ATTUNE_INVALID_ARGUMENT,
          "mode fused needs a workspace of 262144 bytes; workspace_bytes is 4096");
  r.mode = ATTUNE_AUTO;
  refuses(r, ATTUNE_INVALID_ARGUMENT,
          "no rung of mode auto can run this problem on CUDA: needs a workspace of 262144 bytes; "
          "workspace_bytes is 4096");
  r.problem.seq_q = 1 << 30;
  r.problem.batch = 1 << 20;
  EXPECT_EQ(select_cuda(r, &choice).code, ATTUNE_UNSUPPORTED);
}

TEST(CudaSelect, GridLimit) {
  Problem p = problem(DType::f32);
  p.batch = 1 << 20;
  p.heads_q = p.heads_kv = 1 << 10;
  CudaChoice choice;
  const Status status = select_cuda(request(p, 75, ATTUNE_NAIVE), &choice);
  EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
  EXPECT_EQ(status.message,
            "mode naive cannot run this problem: needs 274877906944 blocks; a launch has at most "
            "2147483647");
  p.dtype = DType::f16;
  const Status mma = select_cuda(request(p, 90, ATTUNE_MMA), &choice);
  EXPECT_EQ(mma.code, ATTUNE_UNSUPPORTED);
  EXPECT_NE(mma.message.find("blocks; a launch has at most 2147483647"), std::string::npos)
      << mma.message;
}

// Through strides of 0 a tensor can be longer than memory.
TEST(CudaSelect, LengthLimit) {
  for (const attune_mode mode :
       {ATTUNE_NAIVE, ATTUNE_TILED, ATTUNE_FUSED, ATTUNE_MMA, ATTUNE_WGMMA}) {
    Problem p = problem(DType::f16);
    p.seq_q = 1;
    p.seq_k = int64_t{1} << 31;
    CudaChoice choice;
    const Status status = select_cuda(request(p, 90, mode), &choice);
    EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
    EXPECT_NE(status.message.find("takes sequences of at most 2147482623"), std::string::npos)
        << status.message;
    std::swap(p.seq_q, p.seq_k);
    EXPECT_EQ(select_cuda(request(p, 90, mode), &choice).code, ATTUNE_UNSUPPORTED);
  }
}

// ---- workspace ----

TEST(CudaSelect, TiledNeedsItsScores) {
  const Problem p = problem(DType::f16);
  const size_t bytes = size_t(p.batch * p.heads_q * p.seq_q * p.seq_k) * 4;
  EXPECT_EQ(choose(request(p, 90, ATTUNE_TILED, bytes)).plan.workspace_bytes, bytes);

  CudaChoice choice;
  const Status status = select_cuda(request(p, 90, ATTUNE_TILED, bytes - 1), &choice);
  EXPECT_EQ(status.code, ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(status.message, "mode tiled needs a workspace of " + std::to_string(bytes) +
                                " bytes; workspace_bytes is " + std::to_string(bytes - 1));
}

TEST(CudaSelect, AutoPassesOverWhatHasNoWorkspace) {
  const CudaChoice choice = choose(request(problem(DType::f16), 75, ATTUNE_AUTO, 0));
  EXPECT_EQ(choice.mode, ATTUNE_FUSED);
  EXPECT_EQ(choice.plan.workspace_bytes, 0u);
  EXPECT_EQ(reason_of(choice, ATTUNE_TILED),
            "needs a workspace of 67108864 bytes; workspace_bytes is 0");
}

TEST(CudaSelect, ChosenPlanFitsTheWorkspace) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (size_t bytes : {size_t{0}, size_t{1} << 16, size_t{1} << 30}) {
      const CudaChoice choice = choose(request(problem(dtype), 90, ATTUNE_AUTO, bytes));
      EXPECT_LE(choice.plan.workspace_bytes, bytes);
    }
}

TEST(CudaSelect, NoKeysMeansNoScores) {
  Problem p = problem(DType::f32);
  p.seq_k = 0;
  const CudaChoice choice = choose(request(p, 90, ATTUNE_TILED, 0));
  EXPECT_EQ(choice.plan.workspace_bytes, 0u);
  ASSERT_EQ(choice.plan.launches.size(), 2u);
  EXPECT_STREQ(choice.plan.launches[0].entry, "attune_softmax");
}

// ---- names ----

TEST(CudaSelect, Ids) {
  Problem p = problem(DType::f16);
  p.causal = true;
  EXPECT_EQ(cuda_problem_id(p, arch_of(90)), "sm90.attn_fwd.f16.d64.causal");
  EXPECT_EQ(problem_id(p), "cpu.attn_fwd.f16.d64.causal");
  p.dim_v = 128;
  p.heads_kv = 2;
  p.score_mod = p.mask_mod = true;
  EXPECT_EQ(cuda_problem_id(p, arch_of(121)),
            "sm121.attn_fwd.f16.d64.dv128.gqa4.causal.scoremod.maskmod");
  EXPECT_EQ(cuda_problem_id(kernel_key(p), arch_of(75)),
            "sm75.attn_fwd.f16.d64.dv128.causal.scoremod.maskmod");
  EXPECT_EQ(choose(request(problem(DType::f32), 75)).plan.id,
            "sm75.attn_fwd.f32.d64/fused.bq64.bk64.v1");
}

TEST(CudaConfig, RoundTrip) {
  const Config configs[] = {
      config_of(LadderConfig{}),
      config_of(LadderConfig{.rung = Ladder::tiled, .vector = false}),
      config_of(LadderConfig{.rung = Ladder::fused, .block_q = 32, .block_k = 16}),
      config_of(MmaConfig{}),
      config_of(MmaConfig{.warps_q = 8,
                          .warps_k = 2,
                          .warp_rows = 16,
                          .block_k = 128,
                          .stages = 3,
                          .blocks_sm = 2,
                          .q_registers = true,
                          .vector = false,
                          .stage_mask = true,
                          .pack_gqa = true,
                          .split_kv = true}),
  };
  for (const Config& config : configs) {
    Config back;
    ASSERT_TRUE(parse_config(to_string(config), &back)) << to_string(config);
    EXPECT_EQ(back, config);
  }
  EXPECT_EQ(to_string(config_of(LadderConfig{.rung = Ladder::fused})), "fused.bq64.bk64.v1");
  EXPECT_EQ(to_string(config_of(MmaConfig{})), "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv0");
}

TEST(CudaConfig, OneSpellingOnly) {
  Config config;
  for (const char* text :
       {"", "fused", "fused.bq64.bk64", "fused.bk64.bq64.v1", "fused.bq64.bk64.v2",
        "fused.bq064.bk64.v1", "fused.bq64.bk64.v1.", "fused.bq64.bk64.v1.x1", "fast.bq64.bk64.v1",
        "fused.bq99999999999.bk64.v1", "mma.wq4", "mma"})
    EXPECT_FALSE(parse_config(text, &config)) << text;
}

TEST(LadderConfig, InvalidReason) {
  const Problem p = problem(DType::f32);
  const Arch arch = arch_of(90);
  EXPECT_STREQ(invalid_reason(LadderConfig{.rung = Ladder::fused}, p, arch), "");
  EXPECT_STREQ(invalid_reason(LadderConfig{.rung = Ladder::naive}, p, arch),
               "only fused has 128-bit loads");
  EXPECT_STREQ(invalid_reason(LadderConfig{.rung = Ladder::fused, .block_q = 48}, p, arch),
               "block_q is not 32, 64 or 128");
  EXPECT_STREQ(invalid_reason(LadderConfig{.rung = Ladder::fused}, problem(DType::f32, 66), arch),
               "128-bit loads need D and Dv in multiples of 16 bytes");
  EXPECT_STREQ(
      invalid_reason(LadderConfig{.rung = Ladder::fused}, problem(DType::f32, 128), arch_of(75)),
      "the tiles need more shared memory than a block has");
  EXPECT_STREQ(invalid_reason(LadderConfig{.rung = Ladder::fused}, problem(DType::f32, 256), arch),
               "the accumulators need more registers than a thread has");
}

// Every head dimension, dtype and alignment has a valid default on every arch.
TEST(LadderConfig, DefaultsAreValid) {
  for (int cc : kArchs)
    for (DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (int dim = 1; dim <= kMaxHeadDim; ++dim)
        for (int dim_v : {1, dim, kMaxHeadDim})
          for (bool dropout : {false, true})
            for (const char* rung : {"naive", "tiled", "fused"}) {
              CudaRequest r = request(problem(dtype, dim), cc);
              r.problem.dim_v = dim_v;
              r.problem.dropout = dropout;
              r.layout = layout_of(r.problem, {});
              const LadderConfig c = standard<LadderConfig>(rung, r);
              ASSERT_STREQ(invalid_reason(c, r.problem, r.arch), "")
                  << rung << " cc " << cc << " d " << dim << " dv " << dim_v;
            }
}

// ---- layout ----

TEST(Layout, RowsNeed16Bytes) {
  Problem p = problem(DType::f16);
  alignas(16) char memory[64];
  Params a;
  for (View* v : {&a.q, &a.k, &a.v, &a.out}) *v = {memory, 64 * 1024 * 8, 64 * 1024, 64};
  EXPECT_TRUE(layout_of(p, a).rows16);
  EXPECT_TRUE(layout_of(p, {}).rows16) << "NULL counts as aligned";

  a.v.data = memory + 2;
  EXPECT_FALSE(layout_of(p, a).rows16);
  a.v.data = memory;
  a.k.stride_s = 68;
  EXPECT_FALSE(layout_of(p, a).rows16);
  p.seq_k = 1;  // a stride that is never taken
  EXPECT_TRUE(layout_of(p, a).rows16);
  p.ragged = true;  // a sequence starts at any row
  EXPECT_FALSE(layout_of(p, a).rows16);
  a.k.stride_s = 64;
  p.dim_v = 60;
  EXPECT_FALSE(layout_of(p, a).rows16);
}

TEST(Layout, MaskRowsNeed16BytesAndNeighbours) {
  Problem p = problem(DType::f16);
  p.mask = MaskKind::bf16;
  Params a;
  a.mask.stride[2] = 1024;
  a.mask.stride[3] = 1;
  EXPECT_TRUE(layout_of(p, a).mask16);
  a.mask.stride[2] = 1028;
  EXPECT_FALSE(layout_of(p, a).mask16);
  a.mask.stride[2] = 0;
  EXPECT_TRUE(layout_of(p, a).mask16);
  a.mask.stride[3] = 0;
  EXPECT_FALSE(layout_of(p, a).mask16);
  p.mask = MaskKind::none;
  EXPECT_TRUE(layout_of(p, a).mask16);
}

// ---- what ships ----

TEST(ShippedPlans, CanBeLaunched) {
  for (int cc : kArchs) {
    const Arch arch = arch_of(cc);
    for (const Plan& plan : shipped_plans(arch, false)) {
      EXPECT_FALSE(plan.launches.empty()) << plan.id;
      EXPECT_EQ(plan.units[0].arch, arch) << plan.id;
      for (const cuda::Launch& launch : plan.launches) {
        EXPECT_GT(launch.grid, 0u) << plan.id;
        EXPECT_GT(launch.block, 0u) << plan.id;
        EXPECT_LE(launch.block, 1024u) << plan.id;
        EXPECT_LE(launch.smem, unsigned(arch.smem_block)) << plan.id;
      }
    }
  }
}

TEST(ShippedPlans, QuickHasOneOfEachRung) {
  // The ladder, then mma and wgmma in 16 bits and fp32; of the backward pass fused, then mma.
  EXPECT_EQ(shipped_plans(arch_of(75), true).size(), 3u + 1);
  EXPECT_EQ(shipped_plans(arch_of(80), true).size(), 5u + 2);
  EXPECT_EQ(shipped_plans(arch_of(90), true).size(), 7u + 2);
  for (int cc : kArchs) EXPECT_GT(shipped_plans(arch_of(cc), false).size(), 150u);
}

TEST(ShippedPlans, VectorAndScalarPathsBothShip) {
  std::set<bool> vector;
  for (const Plan& plan : shipped_plans(arch_of(90), false))
    if (plan.config().rung == rung_named("fused"))
      vector.insert(value_of(plan.config(), "vector") != 0);
  EXPECT_EQ(vector.size(), 2u);
}

}  // namespace
}  // namespace attune
