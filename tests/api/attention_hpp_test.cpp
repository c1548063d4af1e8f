#include <gtest/gtest.h>

#include <attune/attention.hpp>
#include <cmath>
#include <string>

#include "tests/api/sample.hpp"

namespace attune {
namespace {

TEST(AttentionHpp, TensorIsContiguousUnlessToldOtherwise) {
  float data[24] = {};
  const attune_tensor t = tensor(data, {2, 3, 4});
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(t.dtype, ATTUNE_F32);
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.shape[1], 3);
  EXPECT_EQ(t.stride[0], 12);
  EXPECT_EQ(t.stride[1], 4);
  EXPECT_EQ(t.stride[2], 1);
  const attune_tensor strided = tensor(data, ATTUNE_BF16, {2, 3}, {40, -2});
  EXPECT_EQ(strided.dtype, ATTUNE_BF16);
  EXPECT_EQ(strided.stride[0], 40);
  EXPECT_EQ(strided.stride[1], -2);
}

TEST(AttentionHpp, TensorRefusesWhatItCannotHold) {
  float data[1] = {};
  EXPECT_THROW(tensor(data, {1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(tensor(data, {1, 1}, {1}), Error);
}

TEST(AttentionHpp, KnowsTheDtypesOfPlainTypes) {
  EXPECT_EQ(dtype_of<float>(), ATTUNE_F32);
  EXPECT_EQ(dtype_of<const float>(), ATTUNE_F32);
  EXPECT_EQ(dtype_of<bool>(), ATTUNE_BOOL);
  EXPECT_EQ(dtype_of<int32_t>(), ATTUNE_I32);
}

TEST(AttentionHpp, ArgsStartAsDefaults) {
  const Args a;
  EXPECT_EQ(a.struct_size, sizeof(attune_args));
  EXPECT_EQ(a.window_left, -1);
  EXPECT_EQ(a.window_right, -1);
  EXPECT_EQ(a.mode, ATTUNE_AUTO);
  EXPECT_EQ(a.q.data, nullptr);
  const BackwardArgs b(a);
  EXPECT_EQ(b.struct_size, sizeof(attune_backward_args));
  EXPECT_EQ(b.forward, &a);
}

TEST(AttentionHpp, ForwardAndBackwardCompute) {
  testing::Sample s;
  forward(s.a);
  // Rows of a softmax: every output lies between the smallest and the largest V.
  for (size_t i = 0; i < 2 * 4 * 5 * 6; ++i) ASSERT_LE(std::abs(s.m.out[i]), 1);
  EXPECT_EQ(s.m.out[2 * 4 * 5 * 6], testing::kUntouched);
  for (float& x : s.m.dout) x = 0;
  backward(s.b);
  for (size_t i = 0; i < 2 * 4 * 5 * 8; ++i) ASSERT_EQ(s.m.dq[i], 0);
}

TEST(AttentionHpp, ErrorsCarryStatusAndReason) {
  testing::Sample s;
  s.a.k.shape[3] = 3;
  try {
    forward(s.a);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), ATTUNE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(e.what()).find("k.shape[3] is 3"), std::string::npos) << e.what();
  }
  EXPECT_THROW(backward(s.b), Error);
  EXPECT_THROW(explain(s.a), Error);
}

TEST(AttentionHpp, ExplainAndInfoAreWholeJson) {
  testing::Sample s;
  for (const std::string& json : {explain(s.a), info()}) {
    EXPECT_EQ(json.front(), '{');
    EXPECT_EQ(json.back(), '}');
    EXPECT_EQ(json.find('\0'), std::string::npos);
  }
}

}  // namespace
}  // namespace attune
