#include "src/cpu/fused_backward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "src/check/cases.hpp"
#include "src/check/gradients.hpp"
#include "src/cpu/fused.hpp"

namespace attune::cpu {
namespace {

using check::Case;
using check::Fill;
using check::Verdict;

// Tests of each instruction set that runs here, forced in turn.
class EachIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_isa(GetParam())) << GetParam(); }
  void TearDown() override { force_isa(""); }
};
using FusedBackward = EachIsa;
using FullFusedBackward = EachIsa;

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

TEST_P(FusedBackward, QuickSuiteByDefaultConfig) {
  Failures failures;
  for (const Case& c : suite(check::Suite::quick, 1))
    failures.count(c, check::run_gradients_api(c, 2, ATTUNE_FUSED));
}

// Every prebuilt register tile, with block sizes that change from case to case.
TEST_P(FusedBackward, QuickSuiteByAllConfigs) {
  std::vector<CpuConfig> instances;
  for (Tile tile : kTiles)
    for (int degree : {5, 6}) {
      CpuConfig config;
      config.mr = tile.mr;
      config.nv = tile.nv;
      config.exp_degree = degree;
      Problem any;
      any.dim = any.dim_v = 64;
      if (*invalid_reason(config, any, arch()) == '\0') instances.push_back(config);
    }
  ASSERT_GE(instances.size(), 4u);
  constexpr int kBlockQ[] = {192, 1, 7, 64, 1024}, kBlockK[] = {128, 16, 37, 112, 256, 1, 100};
  Executor executor;
  Failures failures;
  size_t n = 0;
  for (const Case& c : suite(check::Suite::quick, 2)) {
    CpuConfig config = instances[n % instances.size()];
    config.block_q = kBlockQ[n % std::size(kBlockQ)];
    config.block_k = kBlockK[n % std::size(kBlockK)];
    config.pack_v = n / 5 % 2 == 1;
    executor.threads = n % 3 == 0 ? 16 : 2;
    failures.count(c, check::run_gradients_config(c, executor, config), to_string(config));
    ++n;
  }
}

TEST_P(FullFusedBackward, FullSuiteByDefaultConfig) {
  Failures failures;
  for (const Case& c : suite(check::Suite::full, 1))
    failures.count(c, check::run_gradients_api(c, 2, ATTUNE_FUSED));
}

INSTANTIATE_TEST_SUITE_P(Isa, FusedBackward, testing::ValuesIn(isa_names()),
                         [](const auto& isa) { return isa.param; });
INSTANTIATE_TEST_SUITE_P(Isa, FullFusedBackward, testing::ValuesIn(isa_names()),
                         [](const auto& isa) { return isa.param; });

// The float64 reference itself keeps the rule by far.
TEST(FusedBackwardJudge, TheReferenceIsRight) {
  Failures failures;
  size_t n = 0;
  for (const Case& c : suite(check::Suite::quick, 3))
    if (n++ % 4 == 0) failures.count(c, check::run_gradients_api(c, 2, ATTUNE_REFERENCE));
}

Case make_case(int64_t batch, int64_t heads, int64_t heads_kv, int64_t sq, int64_t sk,
               int32_t dim) {
  Case c;
  Problem& p = c.problem;
  p.batch = batch;
  p.heads_q = heads;
  p.heads_kv = heads_kv;
  p.seq_q = sq;
  p.seq_k = sk;
  p.dim = p.dim_v = dim;
  p.lse = true;
  c.seed = 4;  // all gradients, with one of LSE
  return c;
}

// What the backward pass writes, one output after another.
std::vector<uint8_t> bits(const Case& c, int threads, bool skewed_mode = false) {
  const check::Data data(c);
  const check::Gradients g(data);
  attune_args forward = g.forward_args();
  forward.threads = 1;
  EXPECT_EQ(attune_forward(&forward), ATTUNE_OK) << attune_last_error();
  forward.mode = ATTUNE_FUSED;
  forward.threads = threads;
  const attune_backward_args args = g.args(&forward);
#if defined(__x86_64__)
  const uint32_t mode = _mm_getcsr();
  if (skewed_mode) _mm_setcsr(mode | 0xe040);  // towards zero, denormals flushed
  EXPECT_EQ(attune_backward(&args), ATTUNE_OK) << attune_last_error();
  _mm_setcsr(mode);
#else
  (void)skewed_mode;
  EXPECT_EQ(attune_backward(&args), ATTUNE_OK) << attune_last_error();
#endif
  std::vector<uint8_t> all;
  for (const check::Tensor* t : g.outputs())
    all.insert(all.end(), t->bytes().begin(), t->bytes().end());
  return all;
}

// Shapes that are cut into parts of keys, of rows, and of both.
std::vector<Case> cut_cases() {
  std::vector<Case> cases = {make_case(1, 1, 1, 300, 1100, 32), make_case(1, 4, 1, 700, 60, 40),
                             make_case(2, 2, 2, 333, 511, 64), make_case(1, 2, 1, 3, 2000, 16)};
  cases[0].problem.causal = true;
  cases[1].problem.sinks = true;
  cases[2].problem.mask = MaskKind::f32;
  cases[2].mask_broadcast = 3;
  cases[3].problem.dtype = DType::bf16;
  return cases;
}

TEST(FusedBackwardBits, RepeatFromRunToRun) {
  for (const Case& c : cut_cases())
    for (int threads : {1, 2, 4, 16}) {
      const std::vector<uint8_t> once = bits(c, threads);
      for (int run = 0; run < 3; ++run)
        EXPECT_EQ(once, bits(c, threads)) << c.name() << ", threads " << threads;
    }
}

TEST(FusedBackwardBits, AreRightWithAnyNumberOfThreads) {
  Failures failures;
  for (const Case& c : cut_cases())
    for (int threads : {1, 2, 3, 7, 16, 64})
      failures.count(c, check::run_gradients_api(c, threads, ATTUNE_FUSED),
                     std::to_string(threads) + " threads");
}

TEST(FusedBackwardBits, DoNotDependOnTheCallersFloatingPointMode) {
  for (const Case& c : cut_cases()) EXPECT_EQ(bits(c, 2, false), bits(c, 2, true)) << c.name();
}

TEST(FusedBackwardBits, BatchInvariantMeansThatThreadsDoNotMatter) {
  for (Case c : cut_cases()) {
    c.problem.batch_invariant = true;
    EXPECT_EQ(bits(c, 1), bits(c, 16)) << c.name();
  }
}

// ---- Inputs that break kernels ----

TEST_P(FusedBackward, ManyRowsAndKeysBeyondOneBlock) {
  constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
  Failures failures;
  size_t n = 0;
  for (Fill fill : {Fill::normal, Fill::huge_logits, Fill::vast_logits, Fill::peaked,
                    Fill::nan_in_masked, Fill::nan_key, Fill::tiny})
    for (bool causal : {false, true}) {
      Case c = make_case(1, 2, 1, 270, 530, 24);
      c.problem.dtype = kDTypes[n++ % 3];
      c.problem.causal = causal;
      c.problem.alignment = Alignment::bottom_right;
      c.fill = fill;
      failures.count(c, check::run_gradients_api(c, 2, ATTUNE_FUSED));
    }
}

// The caller's tensors, contiguous, of one head.
struct OneHead {
  OneHead(int64_t sq, int64_t sk, int64_t width)
      : rows(sq),
        keys(sk),
        dim(width),
        q(size_t(sq * width), 0.5f),
        k(size_t(sk * width), 0.25f),
        v(size_t(sk * width), 1),
        dout(size_t(sq * width), 1),
        out(size_t(sq * width)),
        lse(size_t(sq)),
        dq(size_t(sq * width), NAN),
        dk(size_t(sk * width), NAN),
        dv(size_t(sk * width), NAN) {}

  attune_tensor tensor(std::vector<float>& x, int64_t length) const {
    return {x.data(), ATTUNE_F32, 4, {1, 1, length, dim}, {length * dim, length * dim, dim, 1}};
  }
  attune_args args() {
    attune_args a;
    attune_args_init(&a, sizeof(a));
    a.q = tensor(q, rows);
    a.k = tensor(k, keys);
    a.v = tensor(v, keys);
    a.out = tensor(out, rows);
    a.lse = {lse.data(), ATTUNE_F32, 3, {1, 1, rows}, {rows, rows, 1}};
    a.alignment = ATTUNE_ALIGN_TOP_LEFT;
    a.threads = 1;
    return a;
  }
  void backward(attune_args a, attune_mode mode = ATTUNE_FUSED) {
    ASSERT_EQ(attune_forward(&a), ATTUNE_OK) << attune_last_error();
    a.mode = mode;
    attune_backward_args b;
    attune_backward_args_init(&b, sizeof(b));
    b.forward = &a;
    b.dout = tensor(dout, rows);
    b.dq = tensor(dq, rows);
    b.dk = tensor(dk, keys);
    b.dv = tensor(dv, keys);
    ASSERT_EQ(attune_backward(&b), ATTUNE_OK) << attune_last_error();
  }

  int64_t rows, keys, dim;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
};

// A NaN in a row of Q or dO reaches the keys that the row looks at, and no others.
TEST_P(FusedBackward, NanInARowReachesItsOwnKeysAlone) {
  for (bool in_q : {true, false}) {
    OneHead h(20, 20, 8);
    (in_q ? h.q : h.dout)[10 * 8 + 3] = NAN;
    attune_args a = h.args();
    a.causal = 1;
    h.backward(a);
    for (int64_t j = 0; j < 20; ++j) {
      EXPECT_EQ(std::isnan(h.dv[size_t(j * 8 + 3)]), j <= 10) << j;
      EXPECT_EQ(std::isnan(h.dk[size_t(j * 8)]), j <= 10) << j;
    }
    for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(std::isnan(h.dq[size_t(i * 8)]), i == 10) << i;
  }
}

// What a dropped key holds in V does not count, and the key still has a gradient.
TEST_P(FusedBackward, NanInVOfDroppedKeysDoesNotShow) {
  OneHead h(8, 40, 4), reference(8, 40, 4);
  for (OneHead* x : {&h, &reference}) {
    x->v[13 * 4] = NAN;
    attune_args a = x->args();
    a.dropout_p = 0.9f;
    a.dropout_seed = 5;
    x->backward(a, x == &h ? ATTUNE_FUSED : ATTUNE_REFERENCE);
  }
  int nans = 0;
  for (size_t n = 0; n < h.dq.size(); ++n) {
    EXPECT_EQ(std::isnan(h.dq[n]), std::isnan(reference.dq[n])) << n;
    nans += std::isnan(h.dq[n]);
  }
  EXPECT_LT(nans, int(h.dq.size()));
  for (size_t n = 0; n < h.dv.size(); ++n) EXPECT_FALSE(std::isnan(h.dv[n])) << n;
}

// A million keys: sums of sums, not one long sum.
TEST(FusedBackwardAccuracy, ManyKeysKeepTheAccuracyOfFew) {
  constexpr int64_t kKeys = 1 << 18;
  OneHead h(1, kKeys, 1);
  h.k.assign(h.k.size(), 1);
  for (size_t j = 0; j < h.v.size(); ++j) h.v[j] = j % 2 == 0 ? 2.0f : 1.0f;
  for (size_t j = 0; j < h.k.size(); ++j) h.k[j] = j % 2 == 0 ? 2.0f : 1.0f;
  attune_args a = h.args();
  a.scale = 1;
  h.q[0] = 0;  // all weights are equal
  h.backward(a);
  EXPECT_NEAR(h.dq[0], 0.25, 1e-6);  // the covariance of K and V
}

}  // namespace
}  // namespace attune::cpu
