#include "src/cpu/reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "src/check/random.hpp"
#include "src/cpu/half.hpp"

namespace attune::cpu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A float32 problem on contiguous tensors that it owns.
struct Small {
  Small(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t sq, int64_t sk, int32_t dim,
        int32_t dim_v) {
    p.batch = batch;
    p.heads_q = heads_q;
    p.heads_kv = heads_kv;
    p.seq_q = sq;
    p.seq_k = sk;
    p.dim = dim;
    p.dim_v = dim_v;
    check::Random random(1);
    const auto fill = [&](std::vector<float>* x, int64_t n) {
      x->resize(size_t(n));
      for (float& value : *x) value = random.normal();
    };
    fill(&q, batch * heads_q * sq * dim);
    fill(&k, batch * heads_kv * sk * dim);
    fill(&v, batch * heads_kv * sk * dim_v);
    a.scale = 1 / std::sqrt(float(dim));
  }

  // Pointers are set on each use, so that a Small may be copied and its vectors replaced.
  Params params() {
    Params x = a;
    x.q = {q.data(), p.heads_q * p.seq_q * p.dim, p.seq_q * p.dim, p.dim};
    x.k = {k.data(), p.heads_kv * p.seq_k * p.dim, p.seq_k * p.dim, p.dim};
    x.v = {v.data(), p.heads_kv * p.seq_k * p.dim_v, p.seq_k * p.dim_v, p.dim_v};
    if (p.ragged) {  // [T,H,D]
      x.q = {q.data(), 0, p.dim, p.heads_q * p.dim};
      x.k = {k.data(), 0, p.dim, p.heads_kv * p.dim};
      x.v = {v.data(), 0, p.dim_v, p.heads_kv * p.dim_v};
      x.cu_seqlens_q = cu_q.data();
      x.cu_seqlens_k = cu_k.data();
    }
    x.key_lengths = key_lengths.data();
    if (p.mask == MaskKind::boolean) x.mask.data = keep.data();
    if (p.mask == MaskKind::f32) x.mask.data = bias.data();
    if (p.block_mask_q != 0) x.block_mask.data = blocks.data();
    if (p.alibi) {
      x.alibi_slopes = slopes.data();
      x.alibi_stride_h = 1;
    }
    if (p.sinks) {
      x.sinks = sinks.data();
      x.sinks_stride = 1;
    }
    return x;
  }

  void set_full_strides(View4* view, int64_t rows, int64_t keys) const {
    view->stride[0] = p.heads_q * rows * keys;
    view->stride[1] = rows * keys;
    view->stride[2] = keys;
    view->stride[3] = 1;
  }

  // A boolean mask [B,H,Sq,Sk] from a predicate.
  void mask_by(const std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)>& kept) {
    p.mask = MaskKind::boolean;
    set_full_strides(&a.mask, p.seq_q, p.seq_k);
    keep.clear();
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t i = 0; i < p.seq_q; ++i)
          for (int64_t j = 0; j < p.seq_k; ++j) keep.push_back(kept(b, h, i, j) ? 1 : 0);
  }

  std::vector<double> out(std::vector<double>* lse = nullptr) {
    const size_t rows = size_t(p.batch * p.heads_q * p.seq_q);
    std::vector<double> result(rows * size_t(p.dim_v));
    std::vector<double> log_sums(rows);
    reference_forward_f64(p, params(), Executor{}, {result.data(), log_sums.data(), nullptr});
    if (lse != nullptr) *lse = log_sums;
    return result;
  }

  Problem p;
  Params a;  // scalars and mask strides
  std::vector<float> q, k, v, bias, slopes, sinks;
  std::vector<uint8_t> keep, blocks;
  std::vector<int32_t> cu_q, cu_k, key_lengths;
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t n = 0; n < a.size(); ++n)
    ASSERT_TRUE(a[n] == b[n] || std::abs(a[n] - b[n]) <= tolerance)
        << "element " << n << ": " << a[n] << " and " << b[n];
}

// Two keys of one number each: all by hand. scores = 0 and ln 3, so weights 1/4 and 3/4.
Small two_keys() {
  Small s(1, 1, 1, 1, 2, 1, 1);
  s.a.scale = 1;
  s.q = {1};
  s.k = {0, std::log(3.f)};
  s.v = {10, 20};
  return s;
}

TEST(Reference, TwoKeysByHand) {
  Small s = two_keys();
  std::vector<double> lse;
  EXPECT_NEAR(s.out(&lse)[0], 17.5, 1e-6);
  EXPECT_NEAR(lse[0], std::log(4.0), 1e-7);

  s.a.scale = 2;  // weights 1/10, 9/10
  EXPECT_NEAR(s.out(&lse)[0], 19, 1e-6);
  EXPECT_NEAR(lse[0], std::log(10.0), 1e-7);
}

TEST(Reference, AdditiveMaskByHand) {
  Small s = two_keys();
  s.p.mask = MaskKind::f32;
  s.a.mask.stride[3] = 1;
  s.bias = {std::log(3.f), 0};  // weights 1/2, 1/2
  EXPECT_NEAR(s.out()[0], 15, 1e-6);
  s.bias = {0, -INFINITY};
  EXPECT_EQ(s.out()[0], 10);
}

TEST(Reference, AdditiveMaskInSixteenBits) {
  Small s = two_keys();
  s.bias = {-1.5f, 2};
  s.p.mask = MaskKind::f32;
  s.a.mask.stride[3] = 1;
  const double expected = s.out()[0];
  const std::pair<MaskKind, std::vector<uint16_t>> kinds[] = {
      {MaskKind::f16, {float_to_f16(-1.5f), float_to_f16(2)}},
      {MaskKind::bf16, {float_to_bf16(-1.5f), float_to_bf16(2)}}};
  for (const auto& [kind, bits] : kinds) {
    s.p.mask = kind;
    Params a = s.params();
    a.mask.data = const_cast<uint16_t*>(bits.data());
    double out = 0;
    reference_forward_f64(s.p, a, Executor{}, {&out, nullptr, nullptr});
    EXPECT_EQ(out, expected);
  }
}

TEST(Reference, SoftcapByHand) {
  Small s = two_keys();
  s.p.softcap = true;
  s.a.softcap = 0.5f;
  const double x = std::exp(0.5 * std::tanh(double(std::log(3.f)) / 0.5));
  EXPECT_NEAR(s.out()[0], (10 + 20 * x) / (1 + x), 1e-12);
}

TEST(Reference, AlibiByHand) {
  Small s = two_keys();
  s.p.alibi = true;
  s.slopes = {0.5f};
  for (Alignment alignment : {Alignment::top_left, Alignment::bottom_right}) {
    s.p.alignment = alignment;
    const int64_t position = alignment == Alignment::top_left ? 0 : 1;
    const double w0 = std::exp(-0.5 * double(position));
    const double w1 = std::exp(double(std::log(3.f)) - 0.5 * double(1 - position));
    EXPECT_NEAR(s.out()[0], (10 * w0 + 20 * w1) / (w0 + w1), 1e-12);
  }
}

TEST(Reference, AlibiSlopesPerBatch) {
  Small both(2, 2, 1, 3, 4, 2, 2);
  both.p.alibi = true;
  both.slopes = {0.1f, 0.2f, 0.3f, 0.4f};
  both.a.alibi_stride_b = 2;
  const std::vector<double> out = both.out();
  Small second = both;  // the second sequence alone
  second.p.batch = 1;
  second.q.erase(second.q.begin(), second.q.begin() + 2 * 3 * 2);
  second.k.erase(second.k.begin(), second.k.begin() + 4 * 2);
  second.v.erase(second.v.begin(), second.v.begin() + 4 * 2);
  second.slopes = {0.3f, 0.4f};
  second.a.alibi_stride_b = 0;
  expect_near(second.out(), std::vector<double>(out.begin() + 2 * 3 * 2, out.end()), 1e-14);
}

TEST(Reference, WeightsSumToOne) {
  Small s(2, 4, 2, 5, 9, 8, 3);
  s.v.assign(s.v.size(), 1);
  s.p.softcap = true;
  s.a.softcap = 2;
  s.p.causal = true;
  s.p.alignment = Alignment::bottom_right;
  for (double x : s.out()) EXPECT_NEAR(x, 1, 1e-14);
}

TEST(Reference, CausalIsTheMaskOfItsDefinition) {
  for (int64_t sk : {3, 5, 8})
    for (Alignment alignment : {Alignment::top_left, Alignment::bottom_right}) {
      Small causal(1, 2, 1, 5, sk, 4, 4);
      Small masked = causal;
      causal.p.causal = true;
      causal.p.alignment = alignment;
      const int64_t shift = alignment == Alignment::bottom_right ? sk - 5 : 0;
      masked.mask_by([&](int64_t, int64_t, int64_t i, int64_t j) { return j <= i + shift; });
      std::vector<double> lse, masked_lse;
      expect_near(causal.out(&lse), masked.out(&masked_lse), 0);
      expect_near(lse, masked_lse, 0);
    }
}

TEST(Reference, WindowIsTheMaskOfItsDefinition) {
  for (int64_t left : {kNoLimit, int64_t{0}, int64_t{2}})
    for (int64_t right : {kNoLimit, int64_t{0}, int64_t{1}}) {
      Small window(1, 1, 1, 6, 9, 4, 4);
      Small masked = window;
      window.p.alignment = Alignment::bottom_right;
      window.p.window_left = left;
      window.p.window_right = right;
      masked.mask_by([&](int64_t, int64_t, int64_t i, int64_t j) {
        return (left == kNoLimit || j >= i + 3 - left) && (right == kNoLimit || j <= i + 3 + right);
      });
      expect_near(window.out(), masked.out(), 0);
    }
}

TEST(Reference, BlockMaskIsTheMaskOfItsBlocks) {
  Small blocked(2, 2, 2, 7, 10, 4, 4);
  Small masked = blocked;
  blocked.p.block_mask_q = 3;  // 3 x 3 blocks, the last ones cut off
  blocked.p.block_mask_k = 4;
  blocked.set_full_strides(&blocked.a.block_mask, 3, 3);
  check::Random random(5);
  for (int n = 0; n < 2 * 2 * 3 * 3; ++n) blocked.blocks.push_back(random.chance(0.6f) ? 1 : 0);
  masked.mask_by([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    return blocked.blocks[size_t(((b * 2 + h) * 3 + i / 3) * 3 + j / 4)] != 0;
  });
  expect_near(blocked.out(), masked.out(), 0);
}

TEST(Reference, AdditiveInfinityIsABooleanMask) {
  Small boolean(1, 2, 1, 6, 9, 4, 4);
  boolean.mask_by(
      [](int64_t, int64_t h, int64_t i, int64_t j) { return i != 2 && (i + j + h) % 3 != 0; });
  Small additive = boolean;
  additive.p.mask = MaskKind::f32;
  for (uint8_t kept : boolean.keep) additive.bias.push_back(kept != 0 ? 0 : -INFINITY);
  std::vector<double> lse, additive_lse;
  expect_near(boolean.out(&lse), additive.out(&additive_lse), 0);
  expect_near(lse, additive_lse, 0);
}

TEST(Reference, MaskBroadcastsByStrideZero) {
  Small full(2, 2, 2, 3, 4, 4, 4);
  full.mask_by([](int64_t, int64_t, int64_t i, int64_t j) { return (i + j) % 2 == 0; });
  Small broadcast = full;
  broadcast.a.mask.stride[0] = broadcast.a.mask.stride[1] = 0;
  broadcast.keep.resize(3 * 4);
  expect_near(full.out(), broadcast.out(), 0);
}

TEST(Reference, GroupedHeadsAreRepeatedHeads) {
  Small grouped(2, 6, 2, 3, 5, 4, 3);
  Small repeated = grouped;
  repeated.p.heads_kv = 6;
  const auto repeat = [](const std::vector<float>& x, size_t head) {
    std::vector<float> result;
    for (size_t at = 0; at < x.size(); at += head)
      for (int copy = 0; copy < 3; ++copy)
        result.insert(result.end(), x.begin() + long(at), x.begin() + long(at + head));
    return result;
  };
  repeated.k = repeat(grouped.k, 5 * 4);
  repeated.v = repeat(grouped.v, 5 * 3);
  expect_near(grouped.out(), repeated.out(), 0);
}

// A sink is a key of that score whose V is 0.
TEST(Reference, SinkIsAKeyWithoutValue) {
  Small sink(1, 1, 1, 3, 4, 2, 2);
  Small key = sink;
  sink.p.sinks = true;
  sink.sinks = {0.75f};
  key.p.seq_k = 5;
  key.k.insert(key.k.end(), {0, 0});
  key.v.insert(key.v.end(), {0, 0});
  key.p.mask = MaskKind::f32;
  key.a.mask.stride[3] = 1;
  key.bias = {0, 0, 0, 0, 0.75f};
  std::vector<double> sink_lse, key_lse;
  expect_near(sink.out(&sink_lse), key.out(&key_lse), 1e-15);
  expect_near(sink_lse, key_lse, 1e-15);
}

TEST(Reference, RaggedIsEachSequenceAlone) {
  const std::vector<int32_t> lengths_q = {3, 0, 5}, lengths_k = {4, 2, 0};
  Small ragged(3, 2, 1, 5, 4, 4, 4);
  ragged.p.ragged = true;
  ragged.p.causal = true;
  ragged.p.alignment = Alignment::bottom_right;
  ragged.cu_q = {0, 3, 3, 8};
  ragged.cu_k = {0, 4, 6, 6};
  std::vector<double> lse;
  const std::vector<double> out = ragged.out(&lse);
  for (size_t b = 0; b < 3; ++b) {
    const int64_t sq = lengths_q[b], sk = lengths_k[b];
    Small alone(1, 2, 1, sq, sk, 4, 4);
    alone.p.causal = true;
    alone.p.alignment = Alignment::bottom_right;
    for (int64_t i = 0; i < sq; ++i)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t d = 0; d < 4; ++d)
          alone.q[size_t((h * sq + i) * 4 + d)] =
              ragged.q[size_t(((ragged.cu_q[b] + i) * 2 + h) * 4 + d)];
    for (int64_t n = 0; n < sk * 4; ++n) {
      alone.k[size_t(n)] = ragged.k[size_t(ragged.cu_k[b] * 4 + n)];
      alone.v[size_t(n)] = ragged.v[size_t(ragged.cu_k[b] * 4 + n)];
    }
    std::vector<double> alone_lse;
    const std::vector<double> alone_out = alone.out(&alone_lse);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < sq; ++i) {
        const int64_t row = (int64_t(b) * 2 + h) * 5 + i;
        EXPECT_EQ(lse[size_t(row)], alone_lse[size_t(h * sq + i)]);
        for (int64_t d = 0; d < 4; ++d)
          EXPECT_EQ(out[size_t(row * 4 + d)], alone_out[size_t((h * sq + i) * 4 + d)]);
      }
  }
}

// Keys past a sequence's length are as if they were not there, whatever is in them: the same as
// shorter tensors.
TEST(Reference, KeyLengthsCutEachSequence) {
  const std::vector<int32_t> lengths = {4, 0, 6, 2};
  for (Alignment alignment : {Alignment::top_left, Alignment::bottom_right}) {
    Small batch(4, 2, 1, 3, 6, 4, 4);
    const auto add_limits = [&](Small* s) {
      s->p.causal = s->p.alibi = true;
      s->p.window_left = 2;
      s->p.alignment = alignment;
      s->slopes = {0.5f, 0.25f};
    };
    add_limits(&batch);
    batch.p.key_lengths = true;
    batch.key_lengths = lengths;
    for (size_t b = 0; b < 4; ++b)
      for (size_t n = size_t(lengths[b]) * 4; n < 6 * 4; ++n)
        batch.k[b * 24 + n] = batch.v[b * 24 + n] = kNaN;
    std::vector<double> lse;
    const std::vector<double> out = batch.out(&lse);
    for (size_t b = 0; b < 4; ++b) {
      Small alone(1, 2, 1, 3, lengths[b], 4, 4);
      add_limits(&alone);
      std::copy_n(&batch.q[b * 24], 24, alone.q.begin());
      std::copy_n(&batch.k[b * 24], lengths[b] * 4, alone.k.begin());
      std::copy_n(&batch.v[b * 24], lengths[b] * 4, alone.v.begin());
      std::vector<double> alone_lse;
      const std::vector<double> alone_out = alone.out(&alone_lse);
      for (size_t row = 0; row < 6; ++row) {
        EXPECT_EQ(lse[b * 6 + row], alone_lse[row]);
        for (size_t d = 0; d < 4; ++d)
          EXPECT_EQ(out[(b * 6 + row) * 4 + d], alone_out[row * 4 + d]);
      }
    }
    EXPECT_EQ(lse[6], -INFINITY);  // of the sequence without keys
    EXPECT_EQ(out[24], 0);
  }
}

// What dropout keeps is scaled, what it drops is gone, and the denominator does not know of it.
TEST(Reference, DropoutRemovesWeightsAndScalesTheRest) {
  Small s(1, 1, 1, 40, 50, 4, 50);
  for (int64_t j = 0; j < 50; ++j)
    for (int64_t d = 0; d < 50; ++d) s.v[size_t(j * 50 + d)] = j == d;  // out shows the weights
  std::vector<double> lse, dropped_lse;
  const std::vector<double> weights = s.out(&lse);
  s.p.dropout = true;
  s.a.dropout_p = 0.25f;
  s.a.dropout_seed = 3;
  const std::vector<double> kept = s.out(&dropped_lse);
  int64_t dropped = 0;
  for (size_t n = 0; n < weights.size(); ++n) {
    if (kept[n] == 0)
      ++dropped;
    else
      EXPECT_NEAR(kept[n], weights[n] / 0.75, 1e-15);
  }
  EXPECT_NEAR(double(dropped) / double(weights.size()), 0.25, 4 * std::sqrt(0.25 * 0.75 / 2000));
  expect_near(lse, dropped_lse, 0);
  s.a.dropout_seed = 4;
  EXPECT_NE(kept, s.out());
}

TEST(Reference, LseIsTheLogarithmOfTheDenominator) {
  Small s(1, 1, 1, 2, 6, 3, 1);
  s.p.sinks = true;
  s.sinks = {-0.5f};
  std::vector<double> lse;
  (void)s.out(&lse);
  for (size_t i = 0; i < 2; ++i) {
    double sum = std::exp(-0.5);
    for (size_t j = 0; j < 6; ++j) {
      double dot = 0;
      for (size_t d = 0; d < 3; ++d) dot += double(s.q[i * 3 + d]) * s.k[j * 3 + d];
      sum += std::exp(dot * s.a.scale);
    }
    EXPECT_NEAR(lse[i], std::log(sum), 1e-14);
  }
}

TEST(Reference, HugeScoresDoNotOverflow) {
  Small s = two_keys();
  s.q = {1e4f};
  s.k = {100, 101};
  std::vector<double> lse;
  EXPECT_EQ(s.out(&lse)[0], 20);
  EXPECT_EQ(lse[0], 1.01e6);
}

TEST(Reference, ARowWithoutKeysIsZero) {
  Small s(1, 2, 1, 3, 4, 2, 2);
  s.mask_by([](int64_t, int64_t, int64_t i, int64_t) { return i != 1; });
  std::vector<double> lse;
  std::vector<double> out = s.out(&lse);
  for (size_t h = 0; h < 2; ++h) {
    EXPECT_EQ(lse[h * 3 + 1], -INFINITY);
    EXPECT_TRUE(std::isfinite(lse[h * 3]));
    EXPECT_EQ(out[(h * 3 + 1) * 2], 0);
    EXPECT_NE(out[h * 3 * 2], 0);
  }
  s.p.sinks = true;
  s.sinks = {1.5f, -INFINITY};
  out = s.out(&lse);
  EXPECT_EQ(lse[1], 1.5);
  EXPECT_EQ(lse[3 + 1], -INFINITY);
  EXPECT_EQ(out[1 * 2], 0);
  EXPECT_EQ(out[(3 + 1) * 2], 0);

  Small no_keys(1, 1, 1, 2, 0, 2, 2);
  EXPECT_EQ(no_keys.out(&lse), std::vector<double>(4));
  EXPECT_EQ(lse, std::vector<double>(2, -INFINITY));
}

TEST(Reference, WhatStandsInDisallowedKeysDoesNotMatter) {
  for (bool additive : {false, true}) {
    Small clean(1, 1, 1, 4, 5, 2, 2);
    clean.mask_by([](int64_t, int64_t, int64_t i, int64_t j) { return j != 2 && j <= i; });
    if (additive) {
      clean.p.mask = MaskKind::f32;
      for (uint8_t kept : clean.keep) clean.bias.push_back(kept != 0 ? 0.5f : -INFINITY);
    }
    Small dirty = clean;
    for (size_t d = 0; d < 2; ++d) {
      dirty.k[2 * 2 + d] = dirty.v[2 * 2 + d] = kNaN;
      dirty.k[4 * 2 + d] = dirty.v[4 * 2 + d] = INFINITY;
    }
    expect_near(dirty.out(), clean.out(), 0);
    dirty.v[3 * 2] = kNaN;  // only the last row may look at key 3
    const std::vector<double> out = dirty.out();
    for (size_t n = 0; n < 6; ++n) EXPECT_EQ(out[n], clean.out()[n]);
    EXPECT_TRUE(std::isnan(out[6]));
  }
}

TEST(Reference, RoundsToTheDtypeAndLeavesTheRestAlone) {
  Small s(1, 1, 1, 3, 4, 2, 2);
  std::vector<double> lse;
  const auto halves = [](const std::vector<float>& x, bool f16) {
    std::vector<uint16_t> bits;
    for (float value : x) bits.push_back(f16 ? float_to_f16(value) : float_to_bf16(value));
    return bits;
  };
  for (bool f16 : {true, false}) {
    // The inputs in 16 bits, and the same values in float.
    std::vector<uint16_t> q = halves(s.q, f16), k = halves(s.k, f16), v = halves(s.v, f16);
    Small widened = s;
    for (auto [bits, floats] : {std::pair{&q, &widened.q}, {&k, &widened.k}, {&v, &widened.v}})
      for (size_t n = 0; n < bits->size(); ++n)
        (*floats)[n] = f16 ? f16_to_float((*bits)[n]) : bf16_to_float((*bits)[n]);
    const std::vector<double> expected = widened.out(&lse);

    std::vector<uint16_t> out(3 * 5, 0xabcd);  // rows of 2 with 3 between
    std::vector<float> rounded_lse(3);
    Problem p = s.p;
    p.dtype = f16 ? DType::f16 : DType::bf16;
    Params a = s.params();
    a.q.data = q.data();
    a.k.data = k.data();
    a.v.data = v.data();
    a.out = {out.data(), 0, 0, 5};
    a.lse = {rounded_lse.data(), 0, 0, 1};
    for (bool naive : {false, true}) {
      naive ? naive_forward(p, a, Executor{}) : reference_forward(p, a, Executor{});
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(rounded_lse[i], lse[i], 1e-6);
        for (size_t d = 0; d < 5; ++d) {
          const float want = d < 2 ? float(expected[i * 2 + d]) : 0;
          if (d < 2)
            EXPECT_EQ(out[i * 5 + d], f16 ? float_to_f16(want) : float_to_bf16(want));
          else
            EXPECT_EQ(out[i * 5 + d], 0xabcd);
        }
      }
    }
  }
}

TEST(Reference, ThreadsDoNotChangeTheBits) {
  Small s(2, 3, 1, 17, 23, 8, 8);
  s.p.causal = true;
  const std::vector<double> one = s.out();
  std::vector<double> four(one.size());
  Executor executor;
  executor.threads = 4;
  reference_forward_f64(s.p, s.params(), executor, {four.data(), nullptr, nullptr});
  EXPECT_EQ(one, four);
}

// ---- Gradients ----

struct Gradients {
  std::vector<float> dq, dk, dv, dmask, dsinks;
};

// dmask_shape: the mask's own, 1 where it broadcasts. dlse may be empty.
Gradients gradients(Small* s, const std::vector<float>& dout,
                    const std::vector<int64_t>& dmask_shape, int threads = 1,
                    const std::vector<float>& dlse = {}) {
  Gradients g{std::vector<float>(s->q.size(), kNaN), std::vector<float>(s->k.size(), kNaN),
              std::vector<float>(s->v.size(), kNaN), std::vector<float>(s->bias.size(), kNaN),
              std::vector<float>(s->sinks.size(), kNaN)};
  const Params a = s->params();
  const Problem& p = s->p;
  GradParams grads;
  grads.dq = {g.dq.data(), a.q.stride_b, a.q.stride_h, a.q.stride_s};
  grads.dk = {g.dk.data(), a.k.stride_b, a.k.stride_h, a.k.stride_s};
  grads.dv = {g.dv.data(), a.v.stride_b, a.v.stride_h, a.v.stride_s};
  grads.dout = p.ragged ? View{nullptr, 0, p.dim_v, p.heads_q * p.dim_v}
                        : View{nullptr, p.heads_q * p.seq_q * p.dim_v, p.seq_q * p.dim_v, p.dim_v};
  grads.dout.data = const_cast<float*>(dout.data());
  if (!dmask_shape.empty()) {
    grads.dmask = a.mask;
    grads.dmask.data = g.dmask.data();
    std::copy(dmask_shape.begin(), dmask_shape.end(), grads.dmask_shape);
  }
  if (p.sinks) {
    grads.dsinks = g.dsinks.data();
    grads.dsinks_stride = 1;
  }
  if (!dlse.empty())
    grads.dlse =
        p.ragged ? View{nullptr, 0, 1, p.heads_q} : View{nullptr, p.heads_q * p.seq_q, p.seq_q, 1};
  grads.dlse.data = const_cast<float*>(dlse.data());
  Executor executor;
  executor.threads = threads;
  reference_backward(p, a, grads, executor);
  return g;
}

// sum(dout * out) + sum(dlse * lse), whose gradients they are. LSE of -inf does not count.
double loss(Small* s, const std::vector<float>& dout, const std::vector<float>& dlse) {
  std::vector<double> lse;
  const std::vector<double> out = s->out(&lse);
  const Problem& p = s->p;
  double sum = 0;
  if (!dlse.empty()) {
    for (int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = Sequence::of(p, s->params(), b);
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t i = 0; i < seq.sq; ++i) {
          const int64_t at = (b * p.heads_q + h) * p.seq_q + i;
          const double x = lse[size_t(at)];
          if (std::isinf(x)) continue;
          sum += x * double(dlse[size_t(p.ragged ? (seq.q0 + i) * p.heads_q + h : at)]);
        }
    }
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = Sequence::of(p, s->params(), b);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < seq.sq; ++i)
        for (int64_t d = 0; d < p.dim_v; ++d) {
          const int64_t row =
              p.ragged ? (seq.q0 + i) * p.heads_q + h : (b * p.heads_q + h) * p.seq_q + i;
          sum += double(dout[size_t(row * p.dim_v + d)]) *
                 out[size_t(((b * p.heads_q + h) * p.seq_q + i) * p.dim_v + d)];
        }
  }
  return sum;
}

// Central differences of fourth order. The steps are as the floats come out, not as intended.
void expect_gradient(Small* s, const std::vector<float>& dout, const std::vector<float>& dlse,
                     std::vector<float>* input, const std::vector<float>& gradient,
                     const char* name) {
  ASSERT_EQ(input->size(), gradient.size()) << name;
  double largest = 0;
  for (size_t n = 0; n < input->size(); ++n) {
    const float x = (*input)[n];
    const auto slope = [&](float step) {
      const float high = x + step, low = x - step;
      (*input)[n] = high;
      const double up = loss(s, dout, dlse);
      (*input)[n] = low;
      const double down = loss(s, dout, dlse);
      (*input)[n] = x;
      return (up - down) / (double(high) - double(low));
    };
    const double expected = std::isinf(x) ? 0 : (4 * slope(0x1p-8f) - slope(0x1p-7f)) / 3;
    EXPECT_NEAR(gradient[n], expected, 2e-6) << name << ' ' << n;
    largest = std::max(largest, std::abs(expected));
  }
  EXPECT_GT(largest, 1e-3) << name << ": nothing was tested";
}

void expect_gradients(Small* s, const std::vector<int64_t>& dmask_shape, bool of_lse) {
  check::Random random(9);
  const size_t rows = s->q.size() / size_t(s->p.dim);
  std::vector<float> dout(rows * size_t(s->p.dim_v)), dlse(of_lse ? rows : 0);
  for (float& x : dout) x = random.normal();
  for (float& x : dlse) x = random.normal();
  const Gradients g = gradients(s, dout, dmask_shape, 1, dlse);
  expect_gradient(s, dout, dlse, &s->q, g.dq, "dq");
  expect_gradient(s, dout, dlse, &s->k, g.dk, "dk");
  expect_gradient(s, dout, dlse, &s->v, g.dv, "dv");
  if (!dmask_shape.empty()) expect_gradient(s, dout, dlse, &s->bias, g.dmask, "dmask");
  if (s->p.sinks) expect_gradient(s, dout, dlse, &s->sinks, g.dsinks, "dsinks");
}

// Without and with a gradient of LSE.
void expect_gradients(Small* s, const std::vector<int64_t>& dmask_shape) {
  expect_gradients(s, dmask_shape, false);
  expect_gradients(s, dmask_shape, true);
}

TEST(ReferenceBackward, Plain) {
  Small s(2, 4, 2, 3, 5, 4, 3);
  expect_gradients(&s, {});
}

TEST(ReferenceBackward, KeyLengths) {
  Small s(3, 4, 2, 3, 5, 4, 3);
  s.p.key_lengths = true;
  s.key_lengths = {2, 5, 0};
  s.p.causal = true;
  s.p.alignment = Alignment::bottom_right;
  expect_gradients(&s, {});  // of unused keys 0
}

void add_every_feature(Small* s) {
  s->p.causal = true;
  s->p.alignment = Alignment::bottom_right;
  s->p.window_left = 4;
  s->p.softcap = true;
  s->a.softcap = 1.5f;
  s->p.alibi = true;
  s->slopes = {0.25f, 0.125f, 0.5f, 0.0625f};
  s->p.sinks = true;
  s->sinks = {0.5f, -0.5f, 1, 0};
  s->p.dropout = true;
  s->a.dropout_p = 0.3f;
  s->a.dropout_seed = 11;
  s->p.block_mask_q = 2;
  s->p.block_mask_k = 3;
  s->blocks = {1, 0, 1, 1, 1, 1};  // [1,1,3,2] of blocks, for all batches and heads
  s->a.block_mask.stride[2] = 2;
  s->a.block_mask.stride[3] = 1;
}

TEST(ReferenceBackward, EveryFeatureAtOnce) {
  Small s(2, 4, 2, 5, 6, 4, 3);
  add_every_feature(&s);
  s.p.mask = MaskKind::f32;
  s.set_full_strides(&s.a.mask, 5, 6);
  check::Random random(2);
  for (int n = 0; n < 2 * 4 * 5 * 6; ++n)
    s.bias.push_back(random.chance(0.2f) ? -INFINITY : random.normal());
  for (int j = 0; j < 6; ++j) s.bias[size_t(6 + j)] = -INFINITY;  // a row without keys
  expect_gradients(&s, {2, 4, 5, 6});
}

TEST(ReferenceBackward, EveryFeatureAtOnceInARaggedBatch) {
  Small s(3, 4, 2, 5, 6, 4, 3);
  s.p.ragged = true;
  s.cu_q = {0, 4, 4, 9};
  s.cu_k = {0, 5, 6, 12};
  s.q.resize(9 * 4 * 4);
  s.k.resize(12 * 2 * 4);
  s.v.resize(12 * 2 * 3);
  add_every_feature(&s);
  expect_gradients(&s, {});
}

TEST(ReferenceBackward, MaskGradientSumsOverBroadcastDimensions) {
  for (int broadcast = 0; broadcast < 16; ++broadcast) {
    Small s(2, 2, 1, 3, 4, 2, 2);
    std::vector<int64_t> shape = {2, 2, 3, 4};
    int64_t stride = 1;
    s.p.mask = MaskKind::f32;
    for (int d = 3; d >= 0; --d) {
      if ((broadcast >> d & 1) != 0) shape[size_t(d)] = 1;
      s.a.mask.stride[d] = shape[size_t(d)] == 1 ? 0 : stride;
      stride *= shape[size_t(d)];
    }
    check::Random random(3);
    for (int64_t n = 0; n < stride; ++n) s.bias.push_back(random.normal());
    std::vector<float> dout(s.q.size());
    for (float& x : dout) x = random.normal();
    const Gradients g = gradients(&s, dout, shape);
    if (shape[3] == 1) {  // a constant added to a row changes nothing
      for (float x : g.dmask) EXPECT_NEAR(x, 0, 1e-6);
    } else {
      expect_gradient(&s, dout, {}, &s.bias, g.dmask, "dmask");
    }
  }
}

TEST(ReferenceBackward, DisallowedKeysNeitherLeakNorGetAGradient) {
  Small clean(1, 2, 1, 4, 5, 2, 2);
  clean.mask_by([](int64_t, int64_t, int64_t i, int64_t j) { return i != 1 && j != 2; });
  Small dirty = clean;
  for (size_t d = 0; d < 2; ++d) dirty.k[2 * 2 + d] = dirty.v[2 * 2 + d] = kNaN;
  const std::vector<float> dout(clean.q.size(), 1);
  const Gradients a = gradients(&clean, dout, {}), b = gradients(&dirty, dout, {});
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_EQ(b.dq[1 * 2 + d], 0);  // the row without keys
    EXPECT_EQ(b.dk[2 * 2 + d], 0);
    EXPECT_EQ(b.dv[2 * 2 + d], 0);
  }
}

TEST(ReferenceBackward, RowsWithoutKeysGiveSinksTheGradientOfLse) {
  for (const int64_t keys : {0, 3}) {
    Small s(1, 2, 1, 2, keys, 2, 2);
    s.p.sinks = true;
    s.sinks = {0.5f, -1};
    if (keys > 0) s.mask_by([](int64_t, int64_t, int64_t, int64_t) { return false; });
    const std::vector<float> dout(s.q.size(), 1);
    const Gradients g = gradients(&s, dout, {}, 1, {1, 2, 4, 8});
    EXPECT_EQ(g.dsinks, (std::vector<float>{3, 12})) << keys;
    EXPECT_EQ(g.dq, std::vector<float>(s.q.size(), 0)) << keys;
  }
}

TEST(ReferenceBackward, TheGradientOfLseIsNotReadWhereLseIsInfinite) {
  Small s(1, 1, 1, 2, 3, 2, 2);
  s.mask_by([](int64_t, int64_t, int64_t i, int64_t) { return i == 0; });
  const std::vector<float> dout(s.q.size(), 1);
  const Gradients g = gradients(&s, dout, {}, 1, {1, kNaN}), h = gradients(&s, dout, {}, 1, {1, 0});
  EXPECT_EQ(g.dq, h.dq);
  EXPECT_EQ(g.dk, h.dk);
  EXPECT_EQ(g.dv, h.dv);
}

// One row and two keys with weights of 1/2, since q is 0; dP is 6 and 2, so dS is 1 and -1.
TEST(ReferenceBackward, TensorCoresMayRoundWeightsAndCutOffSums) {
  uint16_t q = 0, k[2], v[2], dout = float_to_f16(2);
  for (const int n : {0, 1})
    k[n] = float_to_f16(float(n + 1)), v[n] = float_to_f16(float(3 - 2 * n));
  Problem p;
  p.pass = Pass::backward;
  p.dtype = DType::f16;
  p.batch = p.heads_q = p.heads_kv = p.seq_q = p.dim = p.dim_v = 1;
  p.seq_k = 2;
  Params a;
  a.q = {&q, 1, 1, 1};
  a.k = {k, 2, 2, 1};
  a.v = {v, 2, 2, 1};
  GradParams grads;
  grads.dout = {&dout, 1, 1, 1};
  double exact[5] = {}, plain[5] = {}, tensor[5] = {};  // dQ, two of dK, two of dV
  const auto parts = [](double* x) { return ExactGradients{x, x + 1, x + 3, nullptr, nullptr}; };
  reference_backward_f64(p, a, grads, Executor{}, parts(exact), parts(plain));
  double again[5] = {};
  reference_backward_f64(p, a, grads, Executor{}, parts(again), parts(tensor), true);
  EXPECT_EQ(std::vector<double>(exact, exact + 5), std::vector<double>(again, again + 5));
  EXPECT_EQ(exact[0], 1 * 1 - 1 * 2);
  EXPECT_EQ(exact[3], 1);
  // In units of 2^-24: a 16-bit number is off by 2^13 of itself, or by half of one near 0; a
  // product of up to 16 terms by 4 of them.
  const double of_number = 0x1p13, near_zero = 0.5, of_product = 4;
  for (const int n : {3, 4}) EXPECT_EQ(tensor[n] - plain[n], of_number * 0.5 * 2 + near_zero * 2);
  const double of_ds[] = {of_number + near_zero + 0.5 * of_product * 6,
                          of_number + near_zero + 0.5 * of_product * 2};
  EXPECT_EQ(tensor[0] - plain[0], of_ds[0] * 1 + of_ds[1] * 2);
  EXPECT_EQ(tensor[1] - plain[1], 0);  // q is 0
}

TEST(ReferenceBackward, ThreadsDoNotChangeTheBits) {
  Small s(3, 4, 2, 6, 7, 4, 4);
  s.p.sinks = true;
  s.sinks = {0, 1, 2, 3};
  const std::vector<float> dout(s.q.size(), 0.5f);
  const Gradients one = gradients(&s, dout, {}), four = gradients(&s, dout, {}, 4);
  EXPECT_EQ(one.dq, four.dq);
  EXPECT_EQ(one.dk, four.dk);
  EXPECT_EQ(one.dv, four.dv);
  EXPECT_EQ(one.dsinks, four.dsinks);
}

}  // namespace
}  // namespace attune::cpu
