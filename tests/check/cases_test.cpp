#include "src/check/cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "src/check/data.hpp"
#include "src/cpu/fused.hpp"
#include "src/cpu/half.hpp"
#include "src/cpu/reference.hpp"
#include "src/select/select.hpp"

namespace attune::check {
namespace {

// ---- A plain float32 kernel for problems without features but a mask, and the ways in which it
// can be wrong ----

enum class Flaw {
  none,
  exp_off_by_3e_6,     // a polynomial of too low a degree
  bf16_weights,        // fp32 in name only
  no_max_subtraction,  // overflows
  last_key_missing,
  first_key_twice,
  lse_in_log2,
  wrong_head,      // head 0's V for all
  last_dim_first,  // no flaw: another order of summation
  tf32_keys,       // scores of 11 bits
};

// To so many explicit bits of mantissa, cut off.
float cut(float x, int bits) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) >> (23 - bits) << (23 - bits));
}

Status flawed_forward(const Problem& p, const Params& a, const cpu::Executor&, const void* user) {
  const Flaw flaw = *static_cast<const Flaw*>(user);
  const auto row = [](const View& view, int64_t b, int64_t h, int64_t s) {
    return static_cast<float*>(view.data) + b * view.stride_b + h * view.stride_h +
           s * view.stride_s;
  };
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < p.seq_q; ++i) {
        const float* q = row(a.q, b, h, i);
        std::vector<float> scores;
        for (int64_t j = 0; j < p.seq_k; ++j) {
          const float* k = row(a.k, b, h / p.group(), j);
          float dot = 0;
          for (int n = 0; n < p.dim; ++n) {
            const int d = flaw == Flaw::last_dim_first ? p.dim - 1 - n : n;
            dot += q[d] * (flaw == Flaw::tf32_keys ? cut(k[d], 10) : k[d]);
          }
          const int64_t* stride = a.mask.stride;
          const float bias =
              p.mask == MaskKind::none
                  ? 0
                  : static_cast<float*>(
                        a.mask.data)[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]];
          scores.push_back(dot * a.scale + bias);
        }
        if (flaw == Flaw::last_key_missing) scores.pop_back();
        const float largest =
            flaw == Flaw::no_max_subtraction ? 0 : *std::max_element(scores.begin(), scores.end());
        float* out = row(a.out, b, h, i);
        std::fill(out, out + p.dim_v, 0.f);
        float sum = 0;
        for (size_t n = 0; n < scores.size(); ++n) {
          const float x = scores[n] - largest;
          float weight = std::exp(x);
          if (flaw == Flaw::exp_off_by_3e_6) weight *= 1 + 3e-6f * std::sin(20 * x);
          if (flaw == Flaw::bf16_weights) weight = cpu::bf16_to_float(cpu::float_to_bf16(weight));
          if (flaw == Flaw::first_key_twice && n == 0) weight *= 2;
          sum += weight;
          const float* v = row(a.v, b, flaw == Flaw::wrong_head ? 0 : h / p.group(), int64_t(n));
          for (int d = 0; d < p.dim_v; ++d) out[d] += weight * v[d];
        }
        for (int d = 0; d < p.dim_v; ++d) out[d] /= sum;
        const float lse = largest + std::log(sum);
        *row(a.lse, b, h, i) = flaw == Flaw::lse_in_log2 ? lse * 1.442695f : lse;
      }
  return {};
}

Case plain(Fill fill = Fill::normal) {
  Case c;
  c.problem.batch = 2;
  c.problem.heads_q = 4;
  c.problem.heads_kv = 2;
  c.problem.seq_q = 40;
  c.problem.seq_k = 65;
  c.problem.dim = c.problem.dim_v = 64;
  c.problem.lse = true;
  c.fill = fill;
  c.seed = 17;
  return c;
}

Verdict with_flaw(const Case& c, Flaw flaw) {
  return run_case(c, cpu::Executor{}, flawed_forward, &flaw);
}

TEST(Checker, AcceptsAnHonestKernel) {
  for (Fill fill : {Fill::normal, Fill::huge_logits, Fill::tiny, Fill::one_hot_v, Fill::peaked})
    for (bool strided : {false, true}) {
      Case c = plain(fill);
      c.strided = strided;
      const Verdict verdict = with_flaw(c, Flaw::none);
      EXPECT_TRUE(verdict.ok) << c.name() << ": " << verdict.why;
      EXPECT_GT(verdict.limit, 0);
      EXPECT_LT(verdict.limit, fill == Fill::huge_logits ? 1e-2 : 1e-5) << c.name();
    }
}

TEST(Checker, RejectsLowPrecision) {
  EXPECT_FALSE(with_flaw(plain(), Flaw::bf16_weights).ok);
  // Over many keys such small errors average out; over few they must show.
  for (int64_t keys : {2, 3}) {
    Case c = plain();
    c.problem.seq_k = keys;
    EXPECT_TRUE(with_flaw(c, Flaw::none).ok);
    EXPECT_FALSE(with_flaw(c, Flaw::exp_off_by_3e_6).ok);
  }
}

TEST(Checker, RejectsAMissingMaximum) {
  EXPECT_TRUE(with_flaw(plain(Fill::normal), Flaw::no_max_subtraction).ok);  // harmless there
  const Verdict verdict = with_flaw(plain(Fill::huge_logits), Flaw::no_max_subtraction);
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.why.find("the reference"), std::string::npos) << verdict.why;
}

// Where two keys share a row, huge logits turn the roundings of a score into most of the error, and
// the naive loops' own may be next to nothing.
TEST(Checker, AcceptsEveryOrderOfSummationOfHugeLogits) {
  const auto fused = [](const Case& c) {
    return run_case_config(c, cpu::Executor{}, default_cpu_config(c.problem, cpu::arch(), 1));
  };
  for (MaskKind mask : {MaskKind::none, MaskKind::f32})
    for (uint64_t seed = 0; seed < 60; ++seed) {
      Case c = plain(Fill::huge_logits);
      c.problem.mask = mask;
      c.seed = seed;
      const Verdict verdict = with_flaw(c, Flaw::last_dim_first);
      EXPECT_TRUE(verdict.ok) << c.name() << ": " << verdict.why;
    }
  // Found by chance: the naive loops are ten times better here than the fused kernel.
  Case c;
  c.problem.batch = 2;
  c.problem.heads_q = 3;
  c.problem.heads_kv = 1;
  c.problem.seq_q = c.problem.seq_k = 96;
  c.problem.dim = c.problem.dim_v = 32;
  c.problem.causal = c.problem.lse = true;
  c.problem.alignment = Alignment::bottom_right;
  c.scale = 0.3f;
  c.fill = Fill::huge_logits;
  c.seed = 13361512741591303359u;
  EXPECT_TRUE(fused(c).ok) << fused(c).why;
  // The same with masks.
  Case masked;
  masked.problem.batch = 2;
  masked.problem.heads_q = 6;
  masked.problem.heads_kv = 2;
  masked.problem.seq_q = 131;
  masked.problem.seq_k = 3;
  masked.problem.dim = masked.problem.dim_v = 40;
  masked.problem.mask = MaskKind::f16;
  masked.problem.block_mask_q = 62;
  masked.problem.block_mask_k = 18;
  masked.infinite_mask = masked.strided = true;
  masked.mask_broadcast = 6;
  masked.fill = Fill::huge_logits;
  masked.seed = 15573758213721u;
  EXPECT_TRUE(fused(masked).ok) << fused(masked).why;
  EXPECT_LT(fused(masked).limit, 1e-2);
}

// Where one key decides a row, each key after it rounds the whole row again, on every instruction
// set. What is coarse is seen there too.
TEST(Checker, AcceptsTheRoundingsOfARowThatPointsAlongOneKey) {
  Case c;
  c.problem.batch = 1;
  c.problem.heads_q = 3;
  c.problem.heads_kv = 1;
  c.problem.seq_q = 1;
  c.problem.seq_k = 77;
  c.problem.dim = c.problem.dim_v = 16;
  c.problem.lse = true;
  c.fill = Fill::peaked;
  c.seed = 14607178660470581335u;  // found by chance: off by 1.55e-6 without multiply-adds
  const std::string before = cpu::isa_name();
  for (const std::string& isa : cpu::isa_names()) {
    ASSERT_TRUE(cpu::force_isa(isa));
    for (int dot_rows : {0, 8}) {
      cpu::CpuConfig config;
      config.nv = 2;
      config.dot_rows = dot_rows;
      const Verdict verdict = run_case_config(c, cpu::Executor{}, config);
      EXPECT_TRUE(verdict.ok) << isa << ": " << verdict.why;
      EXPECT_LT(verdict.limit, 2e-6);
    }
  }
  cpu::force_isa(before);
  // Where the other keys weigh next to nothing, nothing of theirs can be seen.
  int weights = 0, keys = 0;
  for (c.seed = 0; c.seed < 40; ++c.seed) {
    weights += !with_flaw(c, Flaw::bf16_weights).ok;
    keys += !with_flaw(c, Flaw::tf32_keys).ok;
  }
  EXPECT_GE(weights, 25);
  EXPECT_GE(keys, 38);
}

TEST(Checker, RejectsCoarseScoresOfHugeLogits) {
  for (MaskKind mask : {MaskKind::none, MaskKind::f32})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Case c = plain(Fill::huge_logits);
      c.problem.mask = mask;
      c.seed = seed;
      EXPECT_FALSE(with_flaw(c, Flaw::tf32_keys).ok) << c.name();
      EXPECT_FALSE(with_flaw(c, Flaw::wrong_head).ok) << c.name();
    }
}

TEST(Checker, RejectsOneKeyTooFewOrTooMany) {
  for (Fill fill : {Fill::normal, Fill::tiny, Fill::one_hot_v}) {
    EXPECT_FALSE(with_flaw(plain(fill), Flaw::last_key_missing).ok);
    EXPECT_FALSE(with_flaw(plain(fill), Flaw::first_key_twice).ok);
  }
}

TEST(Checker, RejectsTheWrongHead) { EXPECT_FALSE(with_flaw(plain(), Flaw::wrong_head).ok); }

TEST(Checker, RejectsTheWrongLse) {
  const Verdict verdict = with_flaw(plain(), Flaw::lse_in_log2);
  EXPECT_FALSE(verdict.ok);
  EXPECT_LE(verdict.error, verdict.limit);
  EXPECT_GT(verdict.lse_error, verdict.lse_limit);
}

// ---- Honest results with one thing wrong ----

// The naive loops, and then `spoil`.
template <class Spoil>
Verdict spoilt(const Case& c, Spoil) {
  return run_case(
      c, cpu::Executor{},
      [](const Problem& p, const Params& a, const cpu::Executor& executor, const void*) {
        cpu::naive_forward(p, a, executor);
        Spoil{}(p, a);
        return Status{};
      },
      nullptr);
}

float* floats(const View& view) { return static_cast<float*>(view.data); }

TEST(Checker, RejectsAnUnwrittenOutput) {
  const Verdict nothing = run_case(
      plain(), cpu::Executor{},
      [](const Problem&, const Params&, const cpu::Executor&, const void*) { return Status{}; },
      nullptr);
  EXPECT_FALSE(nothing.ok);
  EXPECT_NE(nothing.why.find("nan"), std::string::npos) << nothing.why;

  Case c = plain();
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    c.problem.dtype = dtype;
    const Verdict last_sequence = run_case(
        c, cpu::Executor{},
        [](const Problem& p, const Params& a, const cpu::Executor& executor, const void*) {
          Problem fewer = p;
          --fewer.batch;
          cpu::naive_forward(fewer, a, executor);
          return Status{};
        },
        nullptr);
    EXPECT_FALSE(last_sequence.ok);
    EXPECT_EQ(last_sequence.why.find("out[1,0,0,0] is "), 0u) << last_sequence.why;
    EXPECT_NE(last_sequence.why.find("nan"), std::string::npos) << last_sequence.why;
  }
}

TEST(Checker, RejectsNaNAndInfinity) {
  EXPECT_FALSE(spoilt(plain(), [](const Problem&, const Params& a) {
                 floats(a.out)[77] = std::numeric_limits<float>::quiet_NaN();
               }).ok);
  EXPECT_FALSE(spoilt(plain(), [](const Problem&, const Params& a) {
                 floats(a.out)[77] = -std::numeric_limits<float>::infinity();
               }).ok);
}

TEST(Checker, RejectsAWriteOutsideTheOutput) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer would end the process at the write";
#else
  const Verdict behind = spoilt(plain(), [](const Problem& p, const Params& a) {
    floats(a.out)[p.batch * a.out.stride_b] = 0;
  });
  EXPECT_EQ(behind.why, "memory around out was written to");
  const Verdict before =
      spoilt(plain(), [](const Problem&, const Params& a) { floats(a.lse)[-1] = 0; });
  EXPECT_EQ(before.why, "memory around lse was written to");
  const Verdict input = spoilt(
      plain(), [](const Problem& p, const Params& a) { floats(a.v)[p.batch * a.v.stride_b] = 0; });
  EXPECT_EQ(input.why, "the input v or its surroundings were written to");
#endif
}

TEST(Checker, RejectsAWriteBetweenRows) {
  Case c = plain();
  c.strided = true;
  const Verdict verdict =
      spoilt(c, [](const Problem& p, const Params& a) { floats(a.out)[p.dim_v] = 0; });
  EXPECT_EQ(verdict.why, "memory around out was written to");
}

TEST(Checker, RejectsAModifiedInput) {
  const Verdict verdict =
      spoilt(plain(), [](const Problem&, const Params& a) { floats(a.k)[5] += 1; });
  EXPECT_EQ(verdict.why, "the input k or its surroundings were written to");
}

// The candidate must not get away with changing what the reference then reads.
TEST(Checker, RejectsAResultThatFitsTamperedInputs) {
  const Verdict verdict = run_case(
      plain(), cpu::Executor{},
      [](const Problem& p, const Params& a, const cpu::Executor& executor, const void*) {
        std::fill_n(floats(a.v), p.seq_k * p.dim_v, 0.f);
        cpu::naive_forward(p, a, executor);
        return Status{};
      },
      nullptr);
  EXPECT_FALSE(verdict.ok);
}

TEST(Checker, WantsExactlyZeroAndMinusInfinityWhereNothingIsAllowed) {
  Case c = plain();
  c.problem.causal = true;
  c.problem.alignment = Alignment::bottom_right;
  c.problem.seq_k = 30;  // rows 0 to 9 have no key
  const auto nothing = [](const Problem&, const Params&) {};
  EXPECT_TRUE(spoilt(c, nothing).ok) << spoilt(c, nothing).why;
  EXPECT_FALSE(spoilt(c, [](const Problem&, const Params& a) { floats(a.out)[0] = 1e-12f; }).ok);
  EXPECT_FALSE(spoilt(c, [](const Problem&, const Params& a) { floats(a.lse)[0] = -1e30f; }).ok);
}

TEST(Checker, WantsNaNWhereTheReferenceIsNaN) {
  const Case c = plain(Fill::nan_key);
  EXPECT_TRUE(spoilt(c, [](const Problem&, const Params&) {}).ok);
  EXPECT_FALSE(spoilt(c, [](const Problem&, const Params& a) { floats(a.out)[3] = 0; }).ok);
}

TEST(Checker, TellsTheStatusOfACallThatFailed) {
  const Verdict verdict = run_case(
      plain(), cpu::Executor{},
      [](const Problem&, const Params&, const cpu::Executor&, const void*) {
        return Status::unsupported("not today");
      },
      nullptr);
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.why.find("not today"), std::string::npos) << verdict.why;
}

TEST(Checker, RefusesAConfigThatCannotRun) {
  cpu::CpuConfig config = default_cpu_config(plain().problem, cpu::arch(), 1);
  config.block_k = 0;
  const Verdict verdict = run_case_config(plain(), cpu::Executor{}, config);
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.why.find("block_k"), std::string::npos) << verdict.why;
}

// ---- The suites ----

TEST(Suite, AcceptsTheNaiveLoopsEverywhere) {
  cpu::Executor executor;
  executor.threads = cpu::usable_threads();
  for (const Case& c : suite(Suite::quick, 1)) {
    const Verdict verdict = run_case(
        c, executor,
        [](const Problem& p, const Params& a, const cpu::Executor& e, const void*) {
          cpu::naive_forward(p, a, e);
          return Status{};
        },
        nullptr);
    EXPECT_TRUE(verdict.ok) << c.name() << ": " << verdict.why;
  }
}

TEST(Suite, HasItsSizeAndUniqueNames) {
  const std::pair<Suite, size_t> sizes[] = {{Suite::quick, 280}, {Suite::full, 3000}};
  for (auto [which, at_least] : sizes) {
    const std::vector<Case> cases = suite(which, 1);
    EXPECT_GE(cases.size(), at_least);
    std::set<std::string> names;
    for (const Case& c : cases) EXPECT_TRUE(names.insert(c.name()).second) << c.name();
  }
}

TEST(Suite, ComesFromItsSeed) {
  const auto names = [](uint64_t seed) {
    std::vector<std::string> result;
    for (const Case& c : suite(Suite::quick, seed)) result.push_back(c.name());
    return result;
  };
  EXPECT_EQ(names(3), names(3));
  EXPECT_NE(names(3), names(4));
}

// Every feature in every dtype, already in the quick suite.
TEST(Suite, CoversEveryFeature) {
  using Has = bool (*)(const Case&);
  const std::pair<const char*, Has> features[] = {
      {"one row", [](const Case& c) { return c.problem.seq_q == 1; }},
      {"one key", [](const Case& c) { return c.problem.seq_k == 1; }},
      {"no key", [](const Case& c) { return c.problem.seq_k == 0; }},
      {"no row", [](const Case& c) { return c.problem.seq_q == 0; }},
      {"empty batch", [](const Case& c) { return c.problem.batch == 0; }},
      {"S % 128 == 64", [](const Case& c) { return c.problem.seq_k % 128 == 64; }},
      {"odd D", [](const Case& c) { return c.problem.dim % 8 != 0; }},
      {"Dv", [](const Case& c) { return c.problem.dim_v != c.problem.dim; }},
      {"many keys", [](const Case& c) { return c.problem.seq_k > 900; }},
      {"top left",
       [](const Case& c) {
         return c.problem.causal && c.problem.alignment == Alignment::top_left;
       }},
      {"bottom right",
       [](const Case& c) {
         return c.problem.causal && c.problem.alignment == Alignment::bottom_right;
       }},
      {"window",
       [](const Case& c) { return c.problem.window_left > 0 || c.problem.window_right > 0; }},
      {"bool mask", [](const Case& c) { return c.problem.mask == MaskKind::boolean; }},
      {"f32 mask", [](const Case& c) { return c.problem.mask == MaskKind::f32; }},
      {"f16 mask", [](const Case& c) { return c.problem.mask == MaskKind::f16; }},
      {"bf16 mask", [](const Case& c) { return c.problem.mask == MaskKind::bf16; }},
      {"infinite mask", [](const Case& c) { return c.infinite_mask; }},
      {"block mask", [](const Case& c) { return c.problem.block_mask_q != 0; }},
      {"gqa", [](const Case& c) { return c.problem.group() > 1 && c.problem.heads_kv > 1; }},
      {"mqa", [](const Case& c) { return c.problem.heads_q > 1 && c.problem.heads_kv == 1; }},
      {"softcap", [](const Case& c) { return c.problem.softcap; }},
      {"alibi", [](const Case& c) { return c.problem.alibi; }},
      {"sinks", [](const Case& c) { return c.problem.sinks; }},
      {"ragged", [](const Case& c) { return c.problem.ragged; }},
      {"dropout", [](const Case& c) { return c.problem.dropout; }},
      {"strided", [](const Case& c) { return c.strided; }},
      {"backwards", [](const Case& c) { return c.backwards; }},
      {"repeated", [](const Case& c) { return c.repeated; }},
      {"huge", [](const Case& c) { return c.fill == Fill::huge_logits; }},
      {"tiny", [](const Case& c) { return c.fill == Fill::tiny; }},
      {"one hot", [](const Case& c) { return c.fill == Fill::one_hot_v; }},
      {"peaked", [](const Case& c) { return c.fill == Fill::peaked; }},
      {"nan", [](const Case& c) { return c.fill == Fill::nan_in_masked; }},
      {"nan key", [](const Case& c) { return c.fill == Fill::nan_key; }},
  };
  for (uint64_t seed : {1, 2, 3}) {
    const std::vector<Case> cases = suite(Suite::quick, seed);
    for (auto [name, has] : features)
      for (DType dtype : {DType::f32, DType::f16, DType::bf16})
        EXPECT_TRUE(std::any_of(cases.begin(), cases.end(),
                                [&](const Case& c) { return c.problem.dtype == dtype && has(c); }))
            << name << " in dtype " << int(dtype) << ", seed " << seed;
  }
}

// Rows with gaps between them, a dimension that is turned round, and canaries.
TEST(CheckTensor, EveryByteThatChangesIsSeen) {
  Tensor t(ATTUNE_F16, {2, 3, 5, 7}, {0, 2, 1, 3}, 3, 2);
  t.turn_round(2);
  t.for_each([&](int64_t at) { t.set(at, 1); });
  std::vector<bool> is_element(t.bytes().size());
  size_t elements = 0;
  t.for_each_run([&](int64_t at, int64_t count) {
    elements += size_t(count);
    for (int64_t byte = 2 * at; byte < 2 * (at + count); ++byte)
      is_element.at(size_t(t.first() + byte)) = true;
  });
  EXPECT_EQ(elements, 2u * 3 * 5 * 7);
  EXPECT_TRUE(t.surroundings_intact());
  const uint64_t before = t.hash();
  for (size_t i = 0; i < t.bytes().size(); ++i) {
    t.bytes()[i] ^= 0x10;
    EXPECT_NE(t.hash(), before) << i;
    EXPECT_EQ(t.surroundings_intact(), is_element[i]) << i;
    t.bytes()[i] ^= 0x10;
  }
  EXPECT_EQ(t.hash(), before);
}

}  // namespace
}  // namespace attune::check
