#include "evolve/judge/stats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/check/random.hpp"

namespace attune::evolve {
namespace {

using check::Random;

// Timings of a shared machine: lognormal noise, a drift that both sides of a pair see, and now and
// then one call that was interrupted.
Pairs simulated(int count, double ratio, double outliers, Random* random) {
  Pairs pairs;
  double drift = 0;
  for (int i = 0; i < count; ++i) {
    drift += 0.02 * double(random->normal());
    const auto one = [&](double seconds) {
      const double late = random->chance(float(outliers)) ? 0.5 * double(random->uniform()) : 0;
      return seconds * std::exp(drift + 0.03 * double(random->normal()) + late);
    };
    pairs.a.push_back(one(1e-3));
    pairs.b.push_back(one(1e-3 * ratio));
  }
  return pairs;
}

Interval paired_ratio(std::vector<double> a, std::vector<double> b, double confidence) {
  return combined_ratio(std::vector{Pairs{std::move(a), std::move(b)}}, confidence);
}

TEST(Stats, MedianOfOddAndEven) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

TEST(Stats, RatioOfExactPairs) {
  const std::vector<double> a{1, 2, 3, 4}, b{2, 4, 6, 8};
  const Interval ratio = paired_ratio(a, b, 0.95);
  EXPECT_NEAR(ratio.low, 2, 1e-12);
  EXPECT_NEAR(ratio.mid, 2, 1e-12);
  EXPECT_NEAR(ratio.high, 2, 1e-12);
}

TEST(Stats, TwoPairsSayNothingOfTheSpread) {
  const std::vector<double> a{1, 1}, b{2, 2};
  const Interval ratio = paired_ratio(a, b, 0.95);
  EXPECT_EQ(ratio.low, 0);
  EXPECT_NEAR(ratio.mid, 2, 1e-12);
  EXPECT_EQ(ratio.high, std::numeric_limits<double>::infinity());
}

TEST(Stats, SamplesThatAreNoTimesSupportNoClaim) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    const Pairs pairs{{bad, 1, 1, 1, 1}, {9, 9, 9, 9, 9}, 1};
    EXPECT_EQ(paired_ratio(pairs.a, pairs.b, 0.95).low, 0);
    EXPECT_EQ(combined_ratio(std::vector{pairs}, 0.95).low, 0);
    EXPECT_EQ(p_not_above(std::vector{pairs}, 0), 1);
  }
  EXPECT_EQ(combined_ratio({}, 0.95).low, 0);
  EXPECT_EQ(p_not_above({}, 0), 1);
  EXPECT_EQ(p_not_above(std::vector{Pairs{{}, {}, 1}}, 0), 1);
}

TEST(Stats, WiderWithMoreConfidence) {
  Random random(6);
  const Pairs pairs = simulated(25, 1, 0.1, &random);
  const Interval some = paired_ratio(pairs.a, pairs.b, 0.8),
                 more = paired_ratio(pairs.a, pairs.b, 0.99);
  EXPECT_LT(more.low, some.low);
  EXPECT_GT(more.high, some.high);
}

TEST(Stats, CombinesShapesByWeight) {
  const std::vector<Pairs> shapes{
      {{1, 1, 1}, {2, 2, 2}, 3}, {{1, 1, 1, 1}, {32, 32, 32, 32}, 1}, {{1}, {9}, 0}};
  const Interval ratio = combined_ratio(shapes, 0.95);
  EXPECT_NEAR(ratio.mid, 4, 1e-12);  // 2^(3/4) * 32^(1/4)
  EXPECT_NEAR(ratio.low, 4, 1e-12);
}

// The interval holds the truth about as often as it says: with drift, whose level pairs cancel.
TEST(Stats, BootstrapCoverage) {
  for (int pairs : {15, 40, 41}) {
    Random random{uint64_t(pairs)};
    const int runs = 600;
    int holds = 0;
    for (int run = 0; run < runs; ++run) {
      const Pairs p = simulated(pairs, 1.07, 0.05, &random);
      const Interval ratio = paired_ratio(p.a, p.b, 0.95);
      holds += ratio.low <= 1.07 && 1.07 <= ratio.high;
    }
    EXPECT_GE(holds, 0.92 * runs) << pairs;
    EXPECT_LE(holds, 0.985 * runs) << pairs;
  }
}

TEST(Stats, CoverageOfSeveralShapes) {
  Random random(2);
  const int runs = 400;
  int holds = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<Pairs> shapes{simulated(15, 1.2, 0.05, &random), simulated(15, 0.9, 0.05, &random),
                              simulated(20, 1.0, 0.05, &random)};
    shapes[0].weight = 2;
    const double truth = std::exp((2 * std::log(1.2) + std::log(0.9)) / 4);
    const Interval ratio = combined_ratio(shapes, 0.95);
    holds += ratio.low <= truth && truth <= ratio.high;
  }
  EXPECT_GE(holds, 0.92 * runs);
  EXPECT_LE(holds, 0.985 * runs);
}

// Nine pairs of workers, three rounds each, on two shapes: an interval over rounds takes what
// workers are born with for progress, one over workers knows better.
TEST(Stats, RoundsOfOneWorkerAreOneDraw) {
  Random random(3);
  const int runs = 300;
  int rounds_hold = 0, workers_hold = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<Pairs> shapes(2);
    for (int worker = 0; worker < 9; ++worker) {
      const double luck = std::exp(0.1 * double(random.normal()));
      for (int round = 0; round < 3; ++round)
        for (Pairs& shape : shapes) {
          shape.a.push_back(1e-3 * std::exp(0.01 * double(random.normal())));
          shape.b.push_back(luck * 1e-3 * std::exp(0.01 * double(random.normal())));
        }
    }
    const auto holds = [&] {
      const Interval ratio = combined_ratio(shapes, 0.95);
      return ratio.low <= 1 && 1 <= ratio.high;
    };
    rounds_hold += holds();
    for (Pairs& shape : shapes) shape.block = 3;
    workers_hold += holds();
  }
  EXPECT_LT(rounds_hold, 0.75 * runs);
  EXPECT_GE(workers_hold, 0.92 * runs);
}

TEST(Stats, TwoSittingsSayNothingOfTheSpread) {
  const Pairs pairs{{1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2}, 1, 3};
  EXPECT_EQ(combined_ratio(std::vector{pairs}, 0.95).low, 0);
  EXPECT_NEAR(combined_ratio(std::vector{pairs}, 0.95).mid, 2, 1e-12);
}

// Tables of Student's t and Fisher's F.
TEST(Stats, TailsByTheTables) {
  EXPECT_NEAR(student_above(2.262157, 9), 0.025, 1e-7);
  EXPECT_NEAR(student_above(4.296806, 9), 0.001, 1e-8);
  EXPECT_NEAR(student_above(6.313752, 1), 0.05, 1e-7);
  EXPECT_NEAR(student_above(1.959964, 1e7), 0.025, 1e-6);
  EXPECT_NEAR(student_above(-2.262157, 9), 0.975, 1e-7);
  EXPECT_EQ(student_above(0, 5), 0.5);
  EXPECT_GT(student_above(300, 7), 0);
  EXPECT_EQ(student_above(std::numeric_limits<double>::infinity(), 7), 0);
  EXPECT_NEAR(fisher_above(2.333774, 5, 30), 0.0665, 1e-3);
  EXPECT_NEAR(fisher_above(2.533555, 5, 30), 0.05, 1e-6);
  EXPECT_NEAR(fisher_above(1, 10, 10), 0.5, 1e-12);
  EXPECT_EQ(fisher_above(0, 3, 8), 1);
}

Pairs pairs_of_logs(const std::vector<double>& logs, int block = 1) {
  Pairs p;
  p.block = block;
  for (double x : logs) {
    p.a.push_back(1);
    p.b.push_back(std::exp(x));
  }
  return p;
}

TEST(Stats, StudentByHand) {
  // Three sittings with the middles 2, 3, 4: mean 3, error 1 / sqrt(3).
  const std::vector sittings{pairs_of_logs({1, 2, 9, 3, 3, 3, 4, -7, 5}, 3)};
  EXPECT_NEAR(estimate_of(sittings)->mid, 3, 1e-12);
  EXPECT_NEAR(estimate_of(sittings)->error, 1 / std::sqrt(3.0), 1e-12);
  EXPECT_EQ(estimate_of(sittings)->freedom, 2);
  EXPECT_NEAR(p_not_above(sittings, 0), student_above(3 * std::sqrt(3.0), 2), 1e-12);
  EXPECT_NEAR(p_not_above(sittings, std::expm1(3)), 0.5, 1e-9);
  EXPECT_NEAR(combined_ratio(sittings, 0.95).high, std::exp(3 + 4.302653 / std::sqrt(3.0)), 1e-2);
  // Of seven pairs the middle three count: 1, 2, 3. The others are moved to 1 and 3.
  const std::vector alone{pairs_of_logs({-50, 2, 1, 90, 3, 0, 4})};
  EXPECT_NEAR(estimate_of(alone)->mid, 2, 1e-12);
  EXPECT_NEAR(estimate_of(alone)->error, 1, 1e-12);  // 6 / (3 * 2)
  EXPECT_EQ(estimate_of(alone)->freedom, 2);
}

TEST(Stats, EqualSamplesAreNoEffect) {
  const std::vector same{pairs_of_logs(std::vector<double>(15, std::log(1.01)))};
  EXPECT_LT(p_not_above(same, 0), 1e-12);
  EXPECT_NEAR(p_not_above(same, 0.01), 0.5, 0.1);
  EXPECT_GT(p_not_above(same, 0.02), 1 - 1e-12);
  EXPECT_EQ(p_not_above(std::vector{pairs_of_logs(std::vector<double>(15, 0.0))}, 0), 0.5);
}

// A p-value below x comes with a chance of about x, also far out, where a run decides.
TEST(Stats, UniformUnderTheNull) {
  for (const int block : {1, 8}) {
    Random random{uint64_t(100 + block)};
    const int runs = 20000 / block;
    std::vector<double> p;
    for (int run = 0; run < runs; ++run) {
      Pairs pairs = simulated(15 * block, 1, 0.1, &random);
      pairs.block = block;
      p.push_back(p_not_above(std::vector{pairs}, 0));
    }
    for (const double x : {0.5, 0.25, 0.05, 0.01}) {
      const double share =
          double(std::count_if(p.begin(), p.end(), [&](double value) { return value < x; })) / runs;
      EXPECT_LT(share, 1.2 * x + 3 * std::sqrt(x / runs)) << block << " " << x;
      EXPECT_GT(share, 0.6 * x - 3 * std::sqrt(x / runs)) << block << " " << x;
    }
  }
}

// ---- the effect of processes ----

std::vector<Pairs> equal_programs(double process, double pair, Random* random) {
  std::vector<Pairs> shapes(2, Pairs{{}, {}, 1, 4});
  for (int sitting = 0; sitting < 8; ++sitting) {
    const double effect = process * double(random->normal());
    for (int n = 0; n < 4; ++n)
      for (Pairs& shape : shapes) {
        shape.a.push_back(1e-3);
        shape.b.push_back(1e-3 * std::exp(effect + pair * double(random->normal())));
      }
  }
  return shapes;
}

// However noisy the pairs are: random error is the test's business, not the margin's.
TEST(Stats, NoiseOfPairsIsNoMargin) {
  Random random(3);
  int nothing = 0;
  for (int run = 0; run < 200; ++run) {
    const Noise noise = noise_of(equal_programs(0, 0.15, &random));
    EXPECT_NEAR(noise.ratio.mid, 1, 0.2);
    EXPECT_NEAR(noise.spread, 0.6745 * 0.15, 0.06);
    nothing += noise.margin == 0;
  }
  EXPECT_GE(nothing, 190);
}

TEST(Stats, NoiseOfProcessesIsTheMargin) {
  Random random(4);
  double sum = 0;
  for (int run = 0; run < 200; ++run)
    sum += noise_of(equal_programs(0.02, 0.004, &random)).margin / 200;
  EXPECT_NEAR(sum, 0.02, 0.002);
}

TEST(Stats, NoiseOfTwoSittingsIsNotKnown) {
  const Pairs two{{1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 2, 2, 2, 2}, 1, 4};
  EXPECT_FALSE(std::isfinite(noise_of(std::vector{two}).margin));
  EXPECT_FALSE(std::isfinite(noise_of({}).margin));
}

}  // namespace
}  // namespace attune::evolve
