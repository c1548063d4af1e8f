#include "src/cpu/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attune::cpu {
namespace {

struct Format {
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
  int mantissa_bits;
  int bias;
  uint16_t infinity;  // its pattern; larger ones are NaN
};
constexpr Format kF16{f16_to_float, float_to_f16, 10, 15, 0x7c00};
constexpr Format kBF16{bf16_to_float, float_to_bf16, 7, 127, 0x7f80};

class Half : public testing::TestWithParam<Format> {};

// The value by the definition of the format, independent of the code under test.
double meaning(const Format& f, uint16_t pattern) {
  const int mantissa = pattern & ((1 << f.mantissa_bits) - 1);
  const int exponent = (pattern & 0x7fff) >> f.mantissa_bits;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits)
                                         : std::ldexp(mantissa + (1 << f.mantissa_bits),
                                                      exponent - f.bias - f.mantissa_bits);
  return (pattern & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST_P(Half, EveryPatternHasItsValueAndComesBack) {
  const Format f = GetParam();
  for (uint32_t n = 0; n < 65536; ++n) {
    const uint16_t pattern = uint16_t(n);
    const float x = f.to_float(pattern);
    ASSERT_EQ(std::signbit(x), (pattern & 0x8000) != 0) << n;
    if ((pattern & 0x7fff) > f.infinity) {
      ASSERT_TRUE(std::isnan(x)) << n;
      const uint16_t back = f.from_float(x);
      ASSERT_GT(back & 0x7fff, f.infinity) << n;
      ASSERT_EQ(back & 0x8000, pattern & 0x8000) << n;
    } else {
      if ((pattern & 0x7fff) == f.infinity)
        ASSERT_TRUE(std::isinf(x)) << n;
      else
        ASSERT_EQ(double(x), meaning(f, pattern)) << n;
      ASSERT_EQ(f.from_float(x), pattern) << n;
    }
  }
}

TEST_P(Half, RoundsToNearestAndTiesToEven) {
  const Format f = GetParam();
  for (uint16_t lower = 0; lower + 1 < f.infinity; ++lower) {
    const uint16_t upper = uint16_t(lower + 1);
    const float middle = float((meaning(f, lower) + meaning(f, upper)) / 2);  // exact in float
    const uint16_t even = lower % 2 == 0 ? lower : upper;
    ASSERT_EQ(f.from_float(middle), even) << lower;
    ASSERT_EQ(f.from_float(std::nextafter(middle, 0.f)), lower) << lower;
    ASSERT_EQ(f.from_float(std::nextafter(middle, INFINITY)), upper) << lower;
    ASSERT_EQ(f.from_float(-middle), even | 0x8000) << lower;
  }
}

TEST_P(Half, BeyondTheLargestIsInfinite) {
  const Format f = GetParam();
  const uint16_t largest = uint16_t(f.infinity - 1);
  const double step = meaning(f, largest) - meaning(f, uint16_t(largest - 1));
  const float half_a_step_more = float(meaning(f, largest) + step / 2);
  EXPECT_EQ(f.from_float(half_a_step_more), f.infinity);
  EXPECT_EQ(f.from_float(std::nextafter(half_a_step_more, 0.f)), largest);
  EXPECT_EQ(f.from_float(-std::numeric_limits<float>::max()), f.infinity | 0x8000);
  EXPECT_EQ(f.from_float(INFINITY), f.infinity);
}

TEST_P(Half, ANaNWhosePayloadLiesInTheLostBitsStaysNaN) {
  const Format f = GetParam();
  for (uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7fc00000u}) {
    const uint16_t pattern = f.from_float(std::bit_cast<float>(bits));
    EXPECT_GT(pattern & 0x7fff, f.infinity) << bits;
    EXPECT_EQ(pattern >> 15, bits >> 31) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Half, testing::Values(kF16, kBF16), [](const auto& format) {
  return format.param.bias == 15 ? "f16" : "bf16";
});

}  // namespace
}  // namespace attune::cpu
