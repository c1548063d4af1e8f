#include "src/check/cuda_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/check/judge.hpp"
#include "src/check/user_code.hpp"
#include "src/cpu/half.hpp"
#include "src/cuda/device.hpp"
#include "src/jit/nvrtc.hpp"
#include "src/select/select.hpp"

namespace attune::check {
namespace {

Case simple(DType dtype = DType::f32) {
  Case c;
  c.problem.dtype = dtype;
  c.problem.batch = 2;
  c.problem.heads_q = 4;
  c.problem.heads_kv = 2;
  c.problem.seq_q = 40;
  c.problem.seq_k = 65;
  c.problem.dim = c.problem.dim_v = 64;
  c.problem.lse = true;
  c.seed = 17;
  return c;
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- Without a device ----

TEST(CudaCases, RungsByComputeCapability) {
  EXPECT_EQ(cuda_rungs(75), (std::vector<attune_mode>{ATTUNE_NAIVE, ATTUNE_TILED, ATTUNE_FUSED}));
  EXPECT_EQ(cuda_rungs(80).back(), ATTUNE_MMA);
  EXPECT_EQ(cuda_rungs(90).back(), ATTUNE_WGMMA);
  EXPECT_EQ(cuda_rungs(121).size(), 4u);
}

TEST(CudaCases, WithoutADeviceTheVerdictSaysWhy) {
  if (cuda::why_unusable().empty()) GTEST_SKIP() << "there is a device";
  const std::vector<Verdict> verdicts = run_case_cuda(simple(), {ATTUNE_NAIVE, ATTUNE_FUSED}, {});
  ASSERT_EQ(verdicts.size(), 2u);
  for (const Verdict& verdict : verdicts) {
    EXPECT_FALSE(verdict.ok);
    EXPECT_EQ(verdict.status, ATTUNE_UNSUPPORTED);
    EXPECT_TRUE(mentions(verdict.why, cuda::why_unusable())) << verdict.why;
  }
}

TEST(UserCode, TakesTheFeaturesOver) {
  Case c = simple();
  c.problem.causal = true;
  c.problem.alignment = Alignment::bottom_right;
  c.problem.window_left = 9;
  c.problem.alibi = true;
  c.problem.softcap = true;
  c.softcap = 5;
  c.problem.mask = MaskKind::boolean;
  const Data data(c);
  attune_args args = data.args();
  const UserCode code = as_user_code(data, &args);
  EXPECT_EQ(args.causal, 0);
  EXPECT_EQ(args.window_left, kNoLimit);
  EXPECT_EQ(args.softcap, 0);
  EXPECT_EQ(args.mask.rank, 0);
  EXPECT_EQ(args.alibi_slopes.rank, 0);
  EXPECT_TRUE(mentions(code.mask_mod, "position = i + 25")) << code.mask_mod;
  EXPECT_TRUE(mentions(code.mask_mod, "j <= position;")) << code.mask_mod;
  EXPECT_TRUE(mentions(code.mask_mod, "j >= position - 9;")) << code.mask_mod;
  EXPECT_TRUE(mentions(code.mask_mod, "mask[")) << code.mask_mod;
  EXPECT_TRUE(mentions(code.score_mod, "tanhf(score / 5.000000000e+00f)")) << code.score_mod;
  EXPECT_TRUE(mentions(code.score_mod, "slope")) << code.score_mod;
}

TEST(UserCode, ReadsKeyLengths) {
  Case c = simple();
  c.problem.causal = true;
  c.problem.alignment = Alignment::bottom_right;
  c.problem.key_lengths = true;
  c.key_lengths = std::vector<int32_t>(size_t(c.problem.batch), 3);
  const Data data(c);
  attune_args args = data.args();
  const std::string code = as_user_code(data, &args).mask_mod;
  const std::string keys =
      "reinterpret_cast<const int*>(words[" + std::to_string(int(kKeyLengths)) + "])[b]";
  EXPECT_TRUE(mentions(code, "position = i + " + keys + " - 40")) << code;
}

TEST(UserCode, ACapBelowABiasStaysAFeature) {
  Case c = simple();
  c.problem.softcap = true;
  c.softcap = 5;
  c.problem.mask = MaskKind::f32;
  c.problem.window_right = int64_t{1} << 62;  // limits nothing, and would overflow an int
  const Data data(c);
  attune_args args = data.args();
  const UserCode code = as_user_code(data, &args);
  EXPECT_EQ(args.softcap, 5);
  EXPECT_EQ(args.mask.rank, 4);
  EXPECT_FALSE(mentions(code.score_mod, "tanhf")) << code.score_mod;
  EXPECT_FALSE(mentions(code.mask_mod, "<=")) << code.mask_mod;
}

// What rounding the weights to 16 bits may cost is allowed to the kernels that must round them, and
// to no others; and a kernel that loses more than that fails with the allowance too.
TEST(Judge, RoundedWeightsNeedTheirAllowance) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    Case c = simple(dtype);
    c.problem.lse = false;
    c.problem.batch = c.problem.heads_q = c.problem.heads_kv = 1;
    Data data(c);
    const Expected expected = expect(data, cpu::Executor{});
    const double allowed = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
    const double before = compare(data, expected).limit;
    const double after = compare(data, expected, {allowed, 0}).limit;
    double largest = 0;
    data.v.for_each(
        [&](int64_t at) { largest = std::max(largest, std::abs(double(data.v.get(at)))); });
    EXPECT_DOUBLE_EQ(after - before, allowed * largest);
    for (int64_t i = 0; i < c.problem.seq_q; ++i)
      for (int64_t d = 0; d < c.problem.dim_v; ++d) {
        const double reference = expected.out[size_t(i * c.problem.dim_v + d)];
        data.out.set(data.out.at(0, 0, i, d),
                     float(reference + (i == 3 && d == 7 ? 0.9 * after : 0)));
      }
    EXPECT_FALSE(compare(data, expected).ok);
    EXPECT_TRUE(compare(data, expected, {allowed, 0}).ok);
    EXPECT_FALSE(compare(data, expected, {allowed / 4, 0}).ok);
  }
}

// ---- On a device ----

class GpuCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& why : {cuda::why_unusable(), jit::nvrtc().problem})
      if (!why.empty()) GTEST_SKIP() << why;
    cuda::Device device;
    ASSERT_TRUE(cuda::device(0, &device).ok());
    rungs = cuda_rungs(device.arch.cc);
    backward_rungs = cuda_rungs(device.arch.cc, Pass::backward);
  }

  // fn(case, mode, verdict) for each, in the threads' order; one at a time.
  using Inspect = std::function<void(const Case&, attune_mode, const Verdict&)>;
  using Run = std::vector<Verdict> (*)(const Case&, const std::vector<attune_mode>&,
                                       const CudaOptions&);
  static void for_all(const std::vector<Case>& cases, const std::vector<attune_mode>& modes,
                      const CudaOptions& options, const Inspect& inspect, Run run = run_case_cuda) {
    std::atomic<size_t> next{0};
    std::mutex one_at_a_time;
    const auto work = [&] {
      for (size_t n = next++; n < cases.size(); n = next++) {
        const std::vector<Verdict> verdicts = run(cases[n], modes, options);
        const std::lock_guard<std::mutex> lock(one_at_a_time);
        for (size_t m = 0; m < modes.size(); ++m) inspect(cases[n], modes[m], verdicts[m]);
      }
    };
    std::vector<std::thread> threads;
    for (int n = 1; n < cpu::usable_threads(); ++n) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }

  // What a rung may refuse: fp32 on tensor cores has no room for wider outputs; Hopper's rung takes
  // fp32 that TMA can reach.
  static bool may_refuse(const Case& c, attune_mode mode, const Verdict& verdict) {
    if (mode == ATTUNE_WGMMA)
      return c.problem.seq_k == 0 || c.problem.batch_invariant ||
             (c.problem.dtype == DType::f32 &&
              (c.problem.dim_v > 128 || mentions(verdict.why, "TMA needs")));
    return mode == ATTUNE_MMA && c.problem.dtype == DType::f32 && c.problem.dim_v > 192;
  }

  static void expect_ok(const Case& c, attune_mode mode, const Verdict& verdict) {
    if (verdict.status == ATTUNE_UNSUPPORTED && may_refuse(c, mode, verdict)) return;
    EXPECT_TRUE(verdict.ok) << mode_name(mode) << " " << c.name() << ": " << verdict.why;
  }

  std::vector<attune_mode> rungs, backward_rungs;
};

std::vector<Case> every(size_t step, uint64_t seed) {
  std::vector<Case> cases;
  const std::vector<Case> all = suite(Suite::quick, seed);
  for (size_t n = 0; n < all.size(); n += step) cases.push_back(all[n]);
  return cases;
}

TEST_F(GpuCheck, EveryRungAgreesWithTheReferenceAndRepeatsItsBits) {
  CudaOptions options;
  options.repeat = true;
  for_all(suite(Suite::quick, 2026), rungs, options, expect_ok);
}

TEST_F(GpuCheck, AutomaticChoice) { for_all(every(3, 2027), {ATTUNE_AUTO}, {}, expect_ok); }

TEST_F(GpuCheck, UserCodeComputesTheFeatures) {
  CudaOptions options;
  options.as_user_code = true;
  for_all(every(4, 2028), rungs, options, expect_ok);
}

TEST_F(GpuCheck, StrictFp32) {
  std::vector<Case> cases = every(5, 2029);
  std::erase_if(cases, [](const Case& c) { return c.problem.dtype != DType::f32; });
  CudaOptions options;
  options.strict_fp32 = true;
  for_all(cases, {ATTUNE_AUTO}, options, expect_ok);
}

// Without one: auto, naive and fused run as ever; a rung that cannot says so and writes nothing.
TEST_F(GpuCheck, WithoutAWorkspace) {
  CudaOptions options;
  options.no_workspace = true;
  for_all(every(5, 2030), {ATTUNE_AUTO, ATTUNE_NAIVE, ATTUNE_FUSED}, options, expect_ok);
  size_t refused = 0;
  for_all(
      every(9, 2031), rungs, options, [&](const Case& c, attune_mode mode, const Verdict& verdict) {
        if (verdict.ok || (verdict.status == ATTUNE_UNSUPPORTED && may_refuse(c, mode, verdict)))
          return;
        ++refused;
        EXPECT_EQ(verdict.status, ATTUNE_INVALID_ARGUMENT) << c.name() << ": " << verdict.why;
        EXPECT_TRUE(mode == ATTUNE_TILED || c.problem.dtype == DType::f32) << mode_name(mode);
        EXPECT_TRUE(mentions(verdict.why, "workspace")) << verdict.why;
      });
  EXPECT_GT(refused, 0u);
}

TEST_F(GpuCheck, GradientsOfEveryRung) {
  CudaOptions options;
  options.repeat = true;
  std::vector<attune_mode> modes = backward_rungs;
  modes.push_back(ATTUNE_AUTO);
  for_all(every(3, 2032), modes, options, expect_ok, run_gradients_cuda);
}

// The judge itself, judged: user code that does what no kernel may.
TEST_F(GpuCheck, TheJudgeSeesWhatIsWrittenElsewhere) {
  struct Sabotage {
    std::string code;
    const char* seen;
  };
  const std::string lead =
      "if (b == 0 && h == 0 && i == 0 && j == 0) reinterpret_cast<char*>(words[";
  const Case c = simple();
  const Sabotage kinds[] = {
      {lead + std::to_string(kOut) + "])[-1] = 1;\n", "around out"},
      {lead + std::to_string(kOut) + "])[" + std::to_string(4 * 2 * 4 * 40 * 64 + 200) + "] = 1;\n",
       "around out"},
      {lead + std::to_string(kQ) + "])[-16] = 1;\n", "the input q"},
      {lead + std::to_string(kQ) + "])[" + std::to_string(4 * 2 * 4 * 40 * 64) + "] = 1;\n",
       "the input q"},
      {lead + std::to_string(kWorkspace) + "])[-256] = 1;\n", "around the workspace"},
  };
  for (const Sabotage& kind : kinds) {
    CudaOptions options;
    options.sabotage = kind.code;
    const Verdict verdict = run_case_cuda(c, ATTUNE_FUSED, options);
    EXPECT_FALSE(verdict.ok);
    EXPECT_TRUE(mentions(verdict.why, kind.seen)) << kind.code << verdict.why;
  }
  CudaOptions harmless;
  harmless.sabotage = "score += 0.f;\n";
  expect_ok(c, ATTUNE_FUSED, run_case_cuda(c, ATTUNE_FUSED, harmless));
}

TEST_F(GpuCheck, TheJudgeSeesWrongScoresAndOtherBits) {
  CudaOptions wrong;
  wrong.sabotage = "if (j == 3) score += 0.01f;\n";
  EXPECT_TRUE(mentions(run_case_cuda(simple(), ATTUNE_FUSED, wrong).why, "off by"));
  // The second run finds what the first one counted: every pair of a query and a key.
  CudaOptions different;
  different.repeat = true;
  different.sabotage = "long long* seen = const_cast<long long*>(words) + " +
                       std::to_string(int(kCuQ)) +
                       ";\nif (*seen >= " + std::to_string(2 * 4 * 40 * 65) +
                       " && j == 3) score += 1e-2f;\n"
                       "atomicAdd(reinterpret_cast<unsigned long long*>(seen), 1ULL);\n";
  EXPECT_TRUE(mentions(run_case_cuda(simple(), ATTUNE_FUSED, different).why, "other bits"));
}

}  // namespace
}  // namespace attune::check
