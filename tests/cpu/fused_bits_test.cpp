// When two calls give the same bits: from run to run, and with batch_invariant alone or in a batch.
#include <gtest/gtest.h>

#include <attune/attention.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace attune {
namespace {

struct Shape {
  int64_t batch, heads_q, heads_kv, sq, sk, dim;
};

std::vector<float> random_floats(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

struct Inputs {
  explicit Inputs(const Shape& s)
      : q(random_floats(s.batch * s.heads_q * s.sq * s.dim, 1)),
        k(random_floats(s.batch * s.heads_kv * s.sk * s.dim, 2)),
        v(random_floats(s.batch * s.heads_kv * s.sk * s.dim, 3)) {}
  std::vector<float> q, k, v;
};

// The out and lse bits of sequences [first, first + count) of the inputs.
std::vector<float> forward_bits(const Shape& s, const Inputs& in, int64_t first, int64_t count,
                                bool causal, bool batch_invariant, int threads = 4) {
  const int64_t out_size = count * s.heads_q * s.sq * s.dim, lse_size = count * s.heads_q * s.sq;
  std::vector<float> result(size_t(out_size + lse_size), -1);
  Args a;
  a.mode = ATTUNE_FUSED;
  a.threads = threads;
  a.q = tensor(in.q.data() + first * s.heads_q * s.sq * s.dim, {count, s.heads_q, s.sq, s.dim});
  a.k = tensor(in.k.data() + first * s.heads_kv * s.sk * s.dim, {count, s.heads_kv, s.sk, s.dim});
  a.v = tensor(in.v.data() + first * s.heads_kv * s.sk * s.dim, {count, s.heads_kv, s.sk, s.dim});
  a.out = tensor(result.data(), {count, s.heads_q, s.sq, s.dim});
  a.lse = tensor(result.data() + out_size, {count, s.heads_q, s.sq});
  a.causal = causal;
  a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
  a.batch_invariant = batch_invariant;
  forward(a);
  return result;
}

bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, size_t(count) * sizeof(float)) == 0;
}

constexpr Shape kShapes[] = {
    {3, 1, 1, 1, 5000, 64},    // few tasks: split-KV
    {3, 4, 1, 2, 3000, 32},    // heads of a group together
    {3, 2, 2, 300, 300, 64},   // several blocks of rows
    {5, 8, 2, 33, 129, 40},    // tails
    {16, 2, 2, 100, 1100, 16}  // alone it has few tasks, in the batch many
};

TEST(FusedBits, RepeatFromRunToRun) {
  for (const Shape& s : kShapes) {
    const Inputs in(s);
    for (bool causal : {false, true}) {
      const std::vector<float> once = forward_bits(s, in, 0, s.batch, causal, false);
      for (int run = 0; run < 3; ++run) {
        const std::vector<float> again = forward_bits(s, in, 0, s.batch, causal, false);
        EXPECT_TRUE(same_bits(once.data(), again.data(), int64_t(once.size())));
      }
    }
  }
}

// One thread takes long blocks of rows, four take short ones with a last block of a single row.
TEST(FusedBits, DoNotDependOnHowRowsAreCut) {
  const Shape s{1, 1, 1, 1441, 1441, 64};
  const Inputs in(s);
  const std::vector<float> one = forward_bits(s, in, 0, 1, true, false, 1);
  const std::vector<float> four = forward_bits(s, in, 0, 1, true, false, 4);
  EXPECT_TRUE(same_bits(one.data(), four.data(), int64_t(one.size())));
}

// Key 0 is NaN in V and weighs nothing: its score lies far below the others. Rows that may look at
// it are NaN, whatever else their block masks; rows that may not are not.
TEST(FusedBits, NanInVShowsExactlyWhereItIsAllowed) {
  constexpr int64_t kRows = 40;
  std::vector<float> q(kRows, 1), k(kRows, 0), v(kRows, 1), out(kRows);
  k[0] = -1e4f;
  v[0] = NAN;
  bool keep[kRows] = {};
  for (int64_t i = 0; i < kRows; ++i) keep[i] = i % 2 == 0;
  Args a;
  a.q = tensor(q.data(), {1, 1, kRows, 1});
  a.k = tensor(k.data(), {1, 1, kRows, 1});
  a.v = tensor(v.data(), {1, 1, kRows, 1});
  a.out = tensor(out.data(), {1, 1, kRows, 1});
  a.scale = 1;
  a.causal = true;
  a.mask = tensor(keep, {kRows, 1});  // the rows that may look at anything
  for (attune_mode mode : {ATTUNE_REFERENCE, ATTUNE_FUSED}) {
    a.mode = mode;
    forward(a);
    for (int64_t i = 0; i < kRows; ++i)
      EXPECT_EQ(std::isnan(out[size_t(i)]), keep[i]) << "row " << i << ", mode " << mode;
  }
}

// A sum of a million floats is off by 1e-4; one of a few thousand, folded into doubles, is not.
TEST(FusedBits, ManyKeysKeepTheAccuracyOfFew) {
  constexpr int64_t kRows = 3, kKeys = 1 << 20;
  std::vector<float> q = {0.5f, 1, -1}, k = random_floats(kKeys, 1), v = random_floats(kKeys, 2);
  for (float& x : v) x = std::abs(x);
  for (int64_t rows : {int64_t{1}, kRows})  // keys in place, and packed
    for (int threads : {1, 4}) {
      std::vector<float> out(size_t(rows), 0);
      Args a;
      a.mode = ATTUNE_FUSED;
      a.threads = threads;
      a.scale = 1;
      a.q = tensor(q.data(), {1, 1, rows, 1});
      a.k = tensor(k.data(), {1, 1, kKeys, 1});
      a.v = tensor(v.data(), {1, 1, kKeys, 1});
      a.out = tensor(out.data(), {1, 1, rows, 1});
      forward(a);
      for (size_t i = 0; i < size_t(rows); ++i) {
        double sum = 0, weights = 0;
        for (size_t j = 0; j < size_t(kKeys); ++j) {
          const double weight = std::exp(double(q[i]) * k[j]);
          weights += weight;
          sum += weight * v[j];
        }
        EXPECT_NEAR(out[i] / (sum / weights), 1, 2e-6) << "row " << i << " of " << rows;
      }
    }
}

// Scale and softcap near the ends of a float's range.
TEST(FusedBits, ExtremeScalesAndSoftcapsAreAsTheReference) {
  const Shape s{1, 1, 1, 3, 40, 8};
  const Inputs in(s);
  const auto largest_difference = [&](float size, float scale, float softcap) {
    std::vector<float> q = in.q, k = in.k, reference(in.q.size()), fused(in.q.size());
    for (float& x : q) x *= size;
    for (float& x : k) x *= size;
    Args a;
    a.q = tensor(q.data(), {1, 1, s.sq, s.dim});
    a.k = tensor(k.data(), {1, 1, s.sk, s.dim});
    a.v = tensor(in.v.data(), {1, 1, s.sk, s.dim});
    a.scale = scale;
    a.softcap = softcap;
    a.mode = ATTUNE_REFERENCE;
    a.out = tensor(reference.data(), {1, 1, s.sq, s.dim});
    forward(a);
    a.mode = ATTUNE_FUSED;
    a.out = tensor(fused.data(), {1, 1, s.sq, s.dim});
    forward(a);
    float worst = 0;
    for (size_t n = 0; n < fused.size(); ++n)
      worst = std::max(worst, std::isnan(fused[n]) ? INFINITY : std::abs(fused[n] - reference[n]));
    return worst;
  };
  EXPECT_LT(largest_difference(1e-19f, 2.4e38f, 0), 1e-5f);
  EXPECT_LT(largest_difference(3e3f, 1e-6f, 1e38f), 1e-5f);
  EXPECT_LT(largest_difference(1e15f, 1e-8f, 1e23f), 1e-5f);  // the cap binds
}

// A sink that takes all of the weight but 1e-80 of it hides no NaN and no Inf of an allowed key.
TEST(FusedBits, ADominatingSinkDoesNotHideNanInV) {
  std::vector<float> q(4, 0), k(8, 0), v(8, 1), out(4);
  float sink = 0;
  Args a;
  a.q = tensor(q.data(), {1, 1, 1, 4});
  a.k = tensor(k.data(), {1, 1, 2, 4});
  a.v = tensor(v.data(), {1, 1, 2, 4});
  a.out = tensor(out.data(), {1, 1, 1, 4});
  a.sinks = tensor(&sink, {1});
  v[1] = NAN;
  v[2] = INFINITY;
  for (const float value : {200.0f, 1000.0f})
    for (attune_mode mode : {ATTUNE_REFERENCE, ATTUNE_FUSED}) {
      sink = value;
      a.mode = mode;
      forward(a);
      EXPECT_EQ(out[0], 0) << "mode " << mode;
      EXPECT_TRUE(std::isnan(out[1])) << "mode " << mode;
      EXPECT_FALSE(std::isfinite(out[2])) << "mode " << mode;
      EXPECT_EQ(out[3], 0) << "mode " << mode;
    }
}

TEST(FusedBits, BatchInvariantMeansASequenceAloneIsTheSame) {
  for (const Shape& s : kShapes) {
    const Inputs in(s);
    for (bool causal : {false, true}) {
      const std::vector<float> all = forward_bits(s, in, 0, s.batch, causal, true);
      const int64_t out_size = s.heads_q * s.sq * s.dim, lse_size = s.heads_q * s.sq;
      for (int64_t b = 0; b < s.batch; ++b) {
        const std::vector<float> alone = forward_bits(s, in, b, 1, causal, true);
        EXPECT_TRUE(same_bits(&all[size_t(b * out_size)], alone.data(), out_size))
            << "out of sequence " << b << ", Sk " << s.sk;
        EXPECT_TRUE(same_bits(&all[size_t(s.batch * out_size + b * lse_size)],
                              &alone[size_t(out_size)], lse_size))
            << "lse of sequence " << b << ", Sk " << s.sk;
      }
    }
  }
}

TEST(FusedBits, BatchInvariantMeansARaggedSequenceAloneIsTheSame) {
  constexpr int64_t kHeads = 2, kDim = 32;
  const std::vector<int32_t> cu_q = {0, 1, 301, 308}, cu_k = {0, 4000, 4300, 6000};
  const std::vector<float> q = random_floats(308 * kHeads * kDim, 1),
                           k = random_floats(6000 * kHeads * kDim, 2),
                           v = random_floats(6000 * kHeads * kDim, 3);
  // Sequences [first, last) as a ragged batch.
  const auto bits = [&](size_t first, size_t last) {
    std::vector<int32_t> part_q, part_k;
    for (size_t b = first; b <= last; ++b) {
      part_q.push_back(cu_q[b] - cu_q[first]);
      part_k.push_back(cu_k[b] - cu_k[first]);
    }
    std::vector<float> out(size_t(part_q.back()) * kHeads * kDim, -1);
    Args a;
    a.mode = ATTUNE_FUSED;
    a.threads = 4;
    a.batch_invariant = 1;
    a.q = tensor(&q[size_t(cu_q[first] * kHeads * kDim)], {part_q.back(), kHeads, kDim});
    a.k = tensor(&k[size_t(cu_k[first] * kHeads * kDim)], {part_k.back(), kHeads, kDim});
    a.v = tensor(&v[size_t(cu_k[first] * kHeads * kDim)], {part_k.back(), kHeads, kDim});
    a.out = tensor(out.data(), {part_q.back(), kHeads, kDim});
    const auto length = int64_t(part_q.size());
    a.cu_seqlens_q = tensor(part_q.data(), {length});
    a.cu_seqlens_k = tensor(part_k.data(), {length});
    forward(a);
    return out;
  };
  const std::vector<float> all = bits(0, 3);
  for (size_t b = 0; b < 3; ++b) {
    const std::vector<float> alone = bits(b, b + 1);
    EXPECT_TRUE(
        same_bits(&all[size_t(cu_q[b] * kHeads * kDim)], alone.data(), int64_t(alone.size())))
        << "sequence " << b;
  }
}

}  // namespace
}  // namespace attune
