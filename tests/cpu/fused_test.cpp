#include "src/cpu/fused.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/check/cases.hpp"
#include "src/check/random.hpp"

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
  for (const char* isa : {"", "AVX2", "NEON_WITHOUT_AES"}) {
    const IsaConfig named{isa, config};
    EXPECT_EQ(parse_isa_config(to_string(named)), named);
  }
  EXPECT_EQ(to_string(IsaConfig{"AVX2", {}}), "AVX2." + to_string(CpuConfig{}));
  const std::string plain = to_string(config);
  for (const std::string& bad : {std::string("mr8.nv3"), std::string("AVX2"), "AVX2.." + plain,
                                 "avx2." + plain, "AVX2.AVX3." + plain, "AVX2." + plain + "."})
    EXPECT_FALSE(parse_isa_config(bad).has_value()) << bad;
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

// ---- rows of V that repeat one row: additions are rounded to the same side ----

struct Repeated {
  int64_t keys, rows, dim, dim_v;
  std::vector<float> q, k, v;
};

// `steepness` of the scores; 0: all weights are equal.
Repeated repeated(int64_t keys, float steepness, check::Random* random) {
  Repeated r{keys, 1 + random->below(9), 1 + random->below(64), 1 + random->below(32), {}, {}, {}};
  const auto fill = [&](int64_t count, float scale, std::vector<float>* to) {
    for (; count > 0; --count) to->push_back(scale * random->normal());
  };
  fill(r.rows * r.dim, steepness, &r.q);
  fill(r.keys * r.dim, 1, &r.k);
  fill(r.dim_v, 1, &r.v);
  return r;
}

// The largest error, of the largest |v|: every row of the result is v.
double error_of(const Repeated& r, attune_mode mode) {
  const auto tensor = [](const std::vector<float>& data, int64_t rows, int64_t dim,
                         int64_t stride) -> attune_tensor {
    return {const_cast<float*>(data.data()),
            ATTUNE_F32,
            4,
            {1, 1, rows, dim},
            {rows * stride, rows * stride, stride, 1}};
  };
  std::vector<float> out(size_t(r.rows * r.dim_v));
  attune_args a;
  attune_args_init(&a, sizeof(a));
  a.q = tensor(r.q, r.rows, r.dim, r.dim);
  a.k = tensor(r.k, r.keys, r.dim, r.dim);
  a.v = tensor(r.v, r.keys, r.dim_v, 0);
  a.out = tensor(out, r.rows, r.dim_v, r.dim_v);
  a.mode = mode;
  a.threads = 1;
  EXPECT_EQ(attune_forward(&a), ATTUNE_OK) << attune_last_error();
  double error = 0, largest = 0;
  for (float x : r.v) largest = std::max(largest, double(std::abs(x)));
  for (size_t i = 0; i < out.size(); ++i)
    error = std::max(error, std::abs(double(out[i]) - double(r.v[i % r.v.size()])));
  return error / largest;
}

// Equal weights are the worst: 3/8 of a rounding for each key, in plain loops as here. Others are
// rounded to both sides. What the weights themselves are off by is the constant.
TEST_P(Fused, RepeatedRowsOfVAreSummedAsWellAsByPlainLoops) {
  constexpr double kRounding = 0x1p-24;
  check::Random random(7);
  for (int n = 0; n < 120; ++n) {
    const int64_t keys = 2 + random.below(int64_t{4} << random.below(11));
    const Repeated equal = repeated(keys, 0, &random);
    for (const attune_mode mode : {ATTUNE_FUSED, ATTUNE_NAIVE})
      EXPECT_LE(error_of(equal, mode), kRounding * (0.375 * double(keys) + 4)) << keys;
    const Repeated other = repeated(keys, n % 2 == 0 ? 1.0f : 4.0f, &random);
    EXPECT_LE(error_of(other, ATTUNE_FUSED), kRounding * (0.1 * double(keys) + 16)) << keys;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Fused, testing::ValuesIn(isa_names()),
                         [](const auto& isa) { return isa.param; });
INSTANTIATE_TEST_SUITE_P(Isa, FullFused, testing::ValuesIn(isa_names()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace attune::cpu
