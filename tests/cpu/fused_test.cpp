#include "src/cpu/fused.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/check/cases.hpp"

namespace attune::cpu {
namespace {

using check::Case;
using check::Verdict;

// Tests of each instruction set that runs here, forced in turn.
class EachIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam())) << GetParam(); }
  void TearDown() override { force_isa(""); }
};
using Fused = EachIsa;
using FullFused = EachIsa;

// Few tests fail in one way only: the first reports say enough.
class Failures {
 public:
  void count(const Case& c, const Verdict& verdict, const std::string& how = "") {
    ++cases_;
    if (verdict.ok) return;
    if (++failures_ <= 10) ADD_FAILURE() << c.name() << ' ' << how << ": " << verdict.why;
  }
  ~Failures() { EXPECT_EQ(failures_, 0) << "of " << cases_ << " cases"; }

 private:
  int cases_ = 0, failures_ = 0;
};

TEST_P(Fused, IsaIsInUse) {
  EXPECT_EQ(isa_name(), GetParam());
  EXPECT_GE(arch().lanes, 4);
  EXPECT_FALSE(force_isa("Z80"));
  EXPECT_EQ(isa_name(), GetParam());
}

TEST_P(Fused, QuickSuiteByDefaultConfig) {
  Failures failures;
  for (const Case& c : suite(check::Suite::quick, 1))
    failures.count(c, check::run_case_api(c, 2, ATTUNE_FUSED));
}

// Every prebuilt instance, with block sizes and switches that change from case to case.
TEST_P(Fused, QuickSuiteByAllConfigs) {
  std::vector<CpuConfig> instances;
  for (Tile tile : kTiles)
    for (int degree : kExpDegrees) {
      CpuConfig config;
      config.mr = tile.mr;
      config.nv = tile.nv;
      config.exp_degree = degree;
      Problem any;
      any.dtype = DType::bf16;
      any.dim = any.dim_v = 64;
      if (*invalid_reason(config, any, arch()) == '\0') instances.push_back(config);
    }
  ASSERT_GE(instances.size(), 6u);
  constexpr int kBlockQ[] = {192, 1, 7, 64, 1024}, kBlockK[] = {128, 16, 37, 112, 256, 1, 100};
  constexpr int kSplits[] = {0, 1, 3, 16}, kDotRows[] = {2, 0, 8};
  constexpr float kThresholds[] = {8, 0, 32};
  Executor executor;
  executor.threads = 2;
  Failures failures;
  size_t n = 0;
  for (const Case& c : suite(check::Suite::quick, 2)) {
    CpuConfig config = instances[n % instances.size()];
    config.block_q = kBlockQ[n % std::size(kBlockQ)];
    config.block_k = kBlockK[n % std::size(kBlockK)];
    config.splits = kSplits[n % std::size(kSplits)];
    config.dot_rows = kDotRows[n / 2 % std::size(kDotRows)];
    config.rescale_threshold = kThresholds[n / 3 % std::size(kThresholds)];
    config.pack_v = n / 5 % 2 == 1;
    // Degree 4 is made for 16-bit results.
    if (c.problem.dtype == DType::f32) config.exp_degree = std::max(config.exp_degree, 5);
    failures.count(c, check::run_case_config(c, executor, config), to_string(config));
    ++n;
  }
}

TEST(CpuConfig, PrintedFormParsesBack) {
  CpuConfig config;
  EXPECT_EQ(to_string(config), "mr6.nv4.exp5.bq192.bk128.sp0.dot2.pv0.rs8");
  config = {.mr = 12,
            .nv = 2,
            .exp_degree = 6,
            .block_q = 96,
            .block_k = 37,
            .splits = 3,
            .dot_rows = 0,
            .pack_v = true,
            .rescale_threshold = 2.5f};
  EXPECT_EQ(parse_cpu_config(to_string(config)), config);
  EXPECT_EQ(parse_cpu_config("mr8.nv3")->mr, 8);  // what is not named keeps its default
  for (const char* bad :
       {"mr", "6", "mr6nv4", "mrx", "zz3", "pv2", "mr1.5", "rs", "mr6..nv4", "mr99999999"})
    EXPECT_FALSE(parse_cpu_config(bad).has_value()) << bad;
}

TEST(CpuConfig, InvalidReasonsAreGiven) {
  Problem p;
  p.dim = p.dim_v = 64;
  const CpuArch wide{16, 32}, narrow{8, 16};
  EXPECT_STREQ(invalid_reason(CpuConfig{}, p, wide), "");
  EXPECT_STRNE(invalid_reason(CpuConfig{}, p, narrow),
               "");  // 6x4 accumulators do not fit 16 registers
  const auto refused = [&](CpuConfig c) { return invalid_reason(c, p, wide)[0] != '\0'; };
  EXPECT_TRUE(refused({.mr = 5}));
  EXPECT_TRUE(refused({.exp_degree = 3}));
  EXPECT_TRUE(refused({.exp_degree = 4}));  // fp32 needs more
  EXPECT_TRUE(refused({.block_q = 0}));
  EXPECT_TRUE(refused({.block_k = 257}));
  EXPECT_TRUE(refused({.splits = -1}));
  EXPECT_TRUE(refused({.dot_rows = 9}));
  EXPECT_TRUE(refused({.rescale_threshold = NAN}));
  p.dim = 257;
  EXPECT_TRUE(refused({}));
}

TEST_P(FullFused, FullSuiteByDefaultConfig) {
  Failures failures;
  for (const Case& c : suite(check::Suite::full, 1))
    failures.count(c, check::run_case_api(c, 2, ATTUNE_FUSED));
}

INSTANTIATE_TEST_SUITE_P(Isa, Fused, testing::ValuesIn(isa_names()),
                         [](const auto& isa) { return isa.param; });
INSTANTIATE_TEST_SUITE_P(Isa, FullFused, testing::ValuesIn(isa_names()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace attune::cpu
