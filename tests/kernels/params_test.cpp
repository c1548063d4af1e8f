#include "kernels/params.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace attune {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// Each condition as attune.h words it.
bool inside(const Problem& p, int64_t position, int64_t j) {
  if (p.causal && !(j <= position)) return false;
  if (p.window_left != kNoLimit && position - j > p.window_left) return false;
  if (p.window_right != kNoLimit && j - position > p.window_right) return false;
  return true;
}

TEST(KeyRange, HoldsExactlyTheKeysOfTheDefinition) {
  int64_t rows = 0;
  for (int64_t sq : {1, 2, 5, 9})
    for (int64_t sk : {0, 1, 2, 5, 9})
      for (Alignment alignment : {Alignment::top_left, Alignment::bottom_right})
        for (bool causal : {false, true})
          for (int64_t left :
               {kNoLimit, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{100}, kLargest})
            for (int64_t right :
                 {kNoLimit, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{100}, kLargest}) {
              Problem p;
              p.seq_q = sq;
              p.seq_k = sk;
              p.alignment = alignment;
              p.causal = causal;
              p.window_left = left;
              p.window_right = right;
              const Sequence s = Sequence::of(p, Params{}, 0);
              const int64_t shift = alignment == Alignment::bottom_right ? sk - sq : 0;
              for (int64_t i = 0; i < sq; ++i, ++rows) {
                const KeyRange range = key_range(p, s, i);
                for (int64_t j = 0; j < sk; ++j)
                  ASSERT_EQ(range.begin <= j && j < range.end, inside(p, i + shift, j))
                      << "sq " << sq << " sk " << sk << " bottom_right " << (shift != 0)
                      << " causal " << causal << " window " << left << ',' << right << " i " << i
                      << " j " << j;
                if (range.begin < range.end) {  // an empty one may be written in any way
                  ASSERT_GE(range.begin, 0);
                  ASSERT_LE(range.end, sk);
                }
              }
            }
  EXPECT_GT(rows, 10000);
}

TEST(Sequence, RaggedRowsStartAtTheirOffsets) {
  const int32_t cu_q[] = {0, 3, 3, 10};
  const int32_t cu_k[] = {0, -1, 5, -1, 5, -1, 6, -1};  // read with stride 2
  Problem p;
  p.ragged = true;
  p.alignment = Alignment::bottom_right;
  Params a;
  a.cu_seqlens_q = cu_q;
  a.cu_seqlens_k = cu_k;
  a.cu_stride_k = 2;
  const Sequence first = Sequence::of(p, a, 0), empty = Sequence::of(p, a, 1),
                 last = Sequence::of(p, a, 2);
  EXPECT_EQ(first.sq, 3);
  EXPECT_EQ(first.sk, 5);
  EXPECT_EQ(first.shift, 2);
  EXPECT_EQ(empty.sq, 0);
  EXPECT_EQ(empty.sk, 0);
  EXPECT_EQ(last.q0, 3);
  EXPECT_EQ(last.k0, 5);
  EXPECT_EQ(last.sq, 7);
  EXPECT_EQ(last.sk, 1);
  EXPECT_EQ(last.shift, -6);
}

// Nobody has checked the lengths that lie on a device: whatever they are, no key outside of the
// sequence is read.
TEST(Sequence, KeyLengthsAreTakenIntoTheSequence) {
  const int32_t lengths[] = {3, -1, 0, -1, 9, -1, 10, -1, -5, -1, 2147483647};  // with stride 2
  const int64_t expected[] = {3, 0, 9, 9, 0, 9};
  Problem p;
  p.seq_q = 4;
  p.seq_k = 9;
  p.key_lengths = true;
  p.alignment = Alignment::bottom_right;
  Params a;
  a.key_lengths = lengths;
  a.key_lengths_stride = 2;
  for (int64_t b = 0; b < 6; ++b) {
    const Sequence s = Sequence::of(p, a, b);
    EXPECT_EQ(s.sq, 4);
    EXPECT_EQ(s.k0, 0);
    EXPECT_EQ(s.sk, expected[b]) << b;
    EXPECT_EQ(s.shift, expected[b] - 4) << b;
  }
  const int32_t cu_q[] = {0, 3, 3}, cu_k[] = {0, 5, 6};
  p.ragged = true;
  a.cu_seqlens_q = cu_q;
  a.cu_seqlens_k = cu_k;
  const int32_t in_ragged[] = {4, 7};
  a.key_lengths = in_ragged;
  a.key_lengths_stride = 1;
  EXPECT_EQ(Sequence::of(p, a, 0).sk, 4);
  EXPECT_EQ(Sequence::of(p, a, 0).shift, 1);
  EXPECT_EQ(Sequence::of(p, a, 1).sk, 1);
  EXPECT_EQ(Sequence::of(p, a, 1).k0, 5);
}

}  // namespace
}  // namespace attune

TEST(Divisor, AgreesWithDivision) {
  std::vector<uint32_t> numbers = {0, 1, 2, 3, 7, 8, 31, 32, 127, 1000, 65535, 65536, 2147483647};
  uint32_t state = 1;
  for (int n = 0; n < 2000; ++n) {
    state = state * 1664525u + 1013904223u;
    numbers.push_back(state >> 1 >> state % 24);
  }
  for (uint32_t d : numbers) {
    if (d == 0) continue;
    const attune::Divisor divisor(d);
    for (size_t n = 0; n < numbers.size(); n += 1 + d % 7) {
      ASSERT_EQ(divisor.quotient(numbers[n]), numbers[n] / d) << numbers[n] << " / " << d;
      const uint32_t edge = numbers[n] / d * d;  // where rounding would show
      ASSERT_EQ(divisor.quotient(edge), edge / d) << edge << " / " << d;
      if (edge == 0) continue;
      ASSERT_EQ(divisor.quotient(edge - 1), (edge - 1) / d) << edge - 1 << " / " << d;
    }
  }
}
