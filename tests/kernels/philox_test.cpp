#include "kernels/tile/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace attune {
namespace {

void expect_words(const Philox4& got, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  EXPECT_EQ(got.word[0], w0);
  EXPECT_EQ(got.word[1], w1);
  EXPECT_EQ(got.word[2], w2);
  EXPECT_EQ(got.word[3], w3);
}

// The known-answer vectors of Random123 (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32_10(0, 0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  const uint32_t ones = 0xffffffff;
  expect_words(philox4x32_10(ones, ones, ones, ones, ones, ones), 0x408f276d, 0x41c83b0e,
               0xa20bc7c6, 0x6d5451fd);
  expect_words(
      philox4x32_10(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, ThresholdIsTheShareOfAllWords) {
  EXPECT_EQ(dropout_threshold(0.f), 0u);
  EXPECT_EQ(dropout_threshold(0.25f), 1u << 30);
  EXPECT_EQ(dropout_threshold(0.5f), 1u << 31);
  EXPECT_LT(dropout_threshold(0.99999f), 0xffffffffu);
  EXPECT_GT(dropout_threshold(0.99999f), 0xfff00000u);
}

TEST(Philox, DropsAtTheAskedRate) {
  for (float p : {0.1f, 0.5f, 0.9f}) {
    int64_t dropped = 0, all = 0;
    for (int64_t i = 0; i < 200; ++i)
      for (int64_t quad = 0; quad < 250; ++quad)
        for (uint32_t word : dropout_bits(42, 7, 1, 2, 8, i, quad).word) {
          dropped += word < dropout_threshold(p);
          ++all;
        }
    const double sigma = std::sqrt(p * (1 - p) / double(all));
    EXPECT_NEAR(double(dropped) / double(all), p, 4 * sigma);
  }
}

// Every coordinate reaches the counter or the key: none may repeat another's bits.
TEST(Philox, EachCoordinateChangesTheBits) {
  std::set<uint64_t> seen;
  const auto first = [&](const Philox4& bits) {
    return seen.insert(uint64_t{bits.word[0]} << 32 | bits.word[1]).second;
  };
  EXPECT_TRUE(first(dropout_bits(1, 1, 1, 1, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(2, 1, 1, 1, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(uint64_t{1} << 32 | 1, 1, 1, 1, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(1, 2, 1, 1, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(1, uint64_t{1} << 33 | 1, 1, 1, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(1, 1, 2, 1, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(1, 1, 1, 2, 4, 1, 1)));
  EXPECT_TRUE(first(dropout_bits(1, 1, 1, 1, 4, 2, 1)));
  EXPECT_TRUE(first(dropout_bits(1, 1, 1, 1, 4, 1, 2)));
}

}  // namespace
}  // namespace attune
