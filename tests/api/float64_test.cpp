// Calls in float64: the reference computes them, and nothing is rounded to float32 on the way.
#include <gtest/gtest.h>

#include <attune/attention.hpp>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/api/sample.hpp"

namespace attune {
namespace {

std::vector<double> doubles(size_t count, uint32_t seed) {
  std::vector<double> values(count);
  const std::vector<float> coarse = testing::numbers(2 * count, seed);
  for (size_t i = 0; i < count; ++i) values[i] = coarse[2 * i] + 1e-9 * coarse[2 * i + 1];
  return values;
}

// B=1, H=2, Hkv=1, Sq=3, Sk=4, D=5, Dv=2.
struct Call64 {
  std::vector<double> q = doubles(30, 1), k = doubles(20, 2), v = doubles(8, 3);
  std::vector<double> mask = doubles(12, 4), sinks = doubles(2, 5), slopes = doubles(2, 6);
  std::vector<double> out = std::vector<double>(12, 7), lse = std::vector<double>(6, 7);
  Args a;

  Call64() {
    a.q = tensor(q.data(), {1, 2, 3, 5});
    a.k = tensor(k.data(), {1, 1, 4, 5});
    a.v = tensor(v.data(), {1, 1, 4, 2});
    a.out = tensor(out.data(), {1, 2, 3, 2});
    a.lse = tensor(lse.data(), {1, 2, 3});
    a.threads = 1;
  }
  void add_all() {
    a.mask = tensor(mask.data(), {3, 4});
    a.sinks = tensor(sinks.data(), {2});
    a.alibi_slopes = tensor(slopes.data(), {2});
    a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
    a.scale_f64 = 0.1;
    a.softcap_f64 = 1.3;
  }

  // By the header's definition, term by term.
  void expect_exact(double scale, double softcap, bool all) const {
    for (size_t h = 0; h < 2; ++h)
      for (size_t i = 0; i < 3; ++i) {
        double sum = all ? std::exp(sinks[h]) : 0, weighted[2] = {};
        for (size_t j = 0; j < 4; ++j) {
          double score = 0;
          for (size_t d = 0; d < 5; ++d) score += q[(h * 3 + i) * 5 + d] * k[j * 5 + d];
          score *= scale;
          if (softcap > 0) score = softcap * std::tanh(score / softcap);
          if (all) score += mask[i * 4 + j] - slopes[h] * std::abs(double(i) + 1 - double(j));
          sum += std::exp(score);
          for (size_t d = 0; d < 2; ++d) weighted[d] += std::exp(score) * v[j * 2 + d];
        }
        EXPECT_NEAR(lse[h * 3 + i], std::log(sum), 1e-14);
        for (size_t d = 0; d < 2; ++d)
          EXPECT_NEAR(out[(h * 3 + i) * 2 + d], weighted[d] / sum, 1e-14);
      }
  }
};

TEST(Float64, NothingIsRounded) {
  for (attune_mode mode : {ATTUNE_AUTO, ATTUNE_REFERENCE}) {
    Call64 c;
    c.a.mode = mode;
    ASSERT_EQ(attune_forward(&c.a), ATTUNE_OK) << attune_last_error();
    c.expect_exact(1 / std::sqrt(5.0), 0, false);
  }
}

TEST(Float64, EveryScalarAndTensorIsExact) {
  Call64 c;
  c.add_all();
  ASSERT_EQ(attune_forward(&c.a), ATTUNE_OK) << attune_last_error();
  c.expect_exact(0.1, 1.3, true);

  Call64 coarse;  // the float fields count where the others are 0
  coarse.a.scale = 0.1f;
  coarse.a.softcap = 1.3f;
  ASSERT_EQ(attune_forward(&coarse.a), ATTUNE_OK) << attune_last_error();
  coarse.expect_exact(double(0.1f), double(1.3f), false);
}

TEST(Float64, ExplainSaysWhyNoOtherRungCan) {
  Call64 c;
  const nlohmann::json said = nlohmann::json::parse(explain(c.a));
  EXPECT_EQ(said["mode"], "reference");
  EXPECT_NE(said["chosen"].get<std::string>().find(".f64."), std::string::npos) << said;
  for (const auto& candidate : said["candidates"])
    EXPECT_EQ(candidate["reason"] == "", candidate["mode"] == "reference") << candidate;
  for (attune_mode mode : {ATTUNE_FUSED, ATTUNE_NAIVE}) {
    c.a.mode = mode;
    EXPECT_EQ(attune_forward(&c.a), ATTUNE_UNSUPPORTED);
    EXPECT_NE(std::strstr(attune_last_error(), "float64"), nullptr) << attune_last_error();
  }
}

struct Refusal {
  const char* name;
  void (*spoil)(Call64&);
  const char* says;
  attune_status status = ATTUNE_INVALID_ARGUMENT;
};
class Float64Refusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(Float64Refusal, NamesTheArgument) {
  Call64 c;
  c.add_all();
  GetParam().spoil(c);
  EXPECT_EQ(attune_forward(&c.a), GetParam().status);
  EXPECT_NE(std::strstr(attune_last_error(), GetParam().says), nullptr) << attune_last_error();
  EXPECT_EQ(c.out, std::vector<double>(12, 7));
}

const Refusal kRefusals[] = {
    {"cuda", [](Call64& c) { c.a.device = ATTUNE_CUDA, c.a.threads = 0; }, "convert to F32",
     ATTUNE_UNSUPPORTED},
    {"mixed", [](Call64& c) { c.a.k.dtype = ATTUNE_F32; }, "k.dtype is F32, but q.dtype is F64"},
    {"lse", [](Call64& c) { c.a.lse.dtype = ATTUNE_F32; }, "lse.dtype is F32; expected F64"},
    {"sinks", [](Call64& c) { c.a.sinks.dtype = ATTUNE_F32; }, "sinks.dtype is F32; expected F64"},
    {"slopes", [](Call64& c) { c.a.alibi_slopes.dtype = ATTUNE_F32; }, "alibi_slopes.dtype is F32"},
    {"scale", [](Call64& c) { c.a.scale_f64 = -1; }, "scale_f64 is -1"},
    {"softcap", [](Call64& c) { c.a.softcap_f64 = std::nan(""); }, "softcap_f64 is nan"},
};
INSTANTIATE_TEST_SUITE_P(All, Float64Refusal, ::testing::ValuesIn(kRefusals),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

TEST(Float64, ItsFieldsAreForItsCallsAlone) {
  testing::Sample s;
  s.a.scale_f64 = 0.5;
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(attune_last_error(), "scale_f64 is 0.5, but q.dtype is F32"), nullptr)
      << attune_last_error();
  s.a.scale_f64 = 0;
  s.add_mask();
  s.a.mask.dtype = ATTUNE_F64;
  EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(attune_last_error(), "mask.dtype is F64"), nullptr) << attune_last_error();
  EXPECT_FALSE(s.written());
}

// As torch's gradcheck: differences of the forward pass, which float32 would drown in rounding.
TEST(Float64, GradientsAreThoseOfTheForwardPass) {
  Call64 c;
  c.add_all();
  const std::vector<double> dout = doubles(12, 8);
  std::vector<double> dq(30), dk(20), dv(8), dmask(12), dsinks(2);
  BackwardArgs b(c.a);
  b.dout = tensor(dout.data(), {1, 2, 3, 2});
  b.dq = tensor(dq.data(), {1, 2, 3, 5});
  b.dk = tensor(dk.data(), {1, 1, 4, 5});
  b.dv = tensor(dv.data(), {1, 1, 4, 2});
  b.dmask = tensor(dmask.data(), {3, 4});
  b.dsinks = tensor(dsinks.data(), {2});
  ASSERT_EQ(attune_backward(&b), ATTUNE_OK) << attune_last_error();
  const auto loss = [&] {
    EXPECT_EQ(attune_forward(&c.a), ATTUNE_OK) << attune_last_error();
    double sum = 0;
    for (size_t n = 0; n < 12; ++n) sum += dout[n] * c.out[n];
    return sum;
  };
  struct {
    std::vector<double>*at, *gradient;
  } const parts[] = {{&c.q, &dq}, {&c.k, &dk}, {&c.v, &dv}, {&c.mask, &dmask}, {&c.sinks, &dsinks}};
  for (const auto& part : parts)
    for (size_t n = 0; n < part.at->size(); ++n) {
      double& x = (*part.at)[n];
      const double kept = x, step = 1e-5;
      x = kept + step;
      const double above = loss();
      x = kept - step;
      const double below = loss();
      x = kept;
      EXPECT_NEAR((above - below) / (2 * step), (*part.gradient)[n], 1e-9);
    }
}

}  // namespace
}  // namespace attune
