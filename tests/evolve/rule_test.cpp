// What the rule believes: by hand, and by simulation with the times of machines that were recorded
// and of machines that are worse.
#include "evolve/judge/rule.hpp"

#include <gtest/gtest.h>

#include "tests/evolve/judge_sim.hpp"

namespace attune::evolve {
namespace {

const char* const kRecordings[] = {"self_test_all_cores.json", "self_test_h200.json"};

Pairs constant(double ratio, int count, int block = 1) {
  return {std::vector<double>(size_t(count), 1), std::vector<double>(size_t(count), ratio), 1,
          block};
}

// ---- by hand ----

TEST(Rule, SharesOfAllConfirmationsAreThreePercent) {
  Spending spending;
  double sum = 0, last = 1;
  for (int n = 0; n < 100000; ++n) {
    EXPECT_LE(spending.level(), last);
    last = spending.level();
    sum += last;
    EXPECT_FALSE(spending.accepts(1));
  }
  EXPECT_LT(sum, 0.03);
  EXPECT_GT(sum, 0.0299);
}

TEST(Rule, WhatAnAcceptedOneHadIsPassedOn) {
  Spending spending, other;
  const double first = spending.level();
  EXPECT_TRUE(spending.accepts(0.9 * first));
  EXPECT_FALSE(other.accepts(first));
  EXPECT_DOUBLE_EQ(spending.level(), first + other.level());
  EXPECT_FALSE(spending.accepts(1));
  EXPECT_FALSE(other.accepts(1));
  EXPECT_DOUBLE_EQ(spending.level(), other.level());
}

TEST(Rule, OnePairOfWorkersConvincesOfNothing) {
  Evaluation e;
  e.stage = Stage::measure;
  for (const double ratio : {1.2, 1.49, 1.51, 30.0}) {
    Spending spending;
    const Pairs pairs = constant(ratio, 15);
    e.p = p_value({&pairs, 1});
    EXPECT_FALSE(believed(e, &spending)) << ratio;
    EXPECT_EQ(obvious({&pairs, 1}), ratio > 1.5) << ratio;
    EXPECT_EQ(spending.level(), Spending().level()) << "it was not one of the confirmations";
  }
  const Pairs sittings = constant(1.2, 48, 3);
  e.sitting = 3;
  e.p = p_value({&sittings, 1});
  Spending spending;
  EXPECT_TRUE(believed(e, &spending));
  e.stage = Stage::race;
  EXPECT_FALSE(believed(e, &spending));
}

TEST(Rule, FarTooSlowIsSeenAtOnce) {
  const EvaluatorOptions options;
  const auto next = [&](double ratio, int count) {
    const Pairs pairs = constant(ratio, count);
    return after_pair({&pairs, 1}, 0, options, false);
  };
  EXPECT_EQ(next(0.6, 2), Next::more);
  EXPECT_EQ(next(0.6, 3), Next::give_up);
  EXPECT_EQ(next(0.8, 3), Next::more);
  EXPECT_EQ(next(0.8, 5), Next::give_up);
  EXPECT_EQ(next(1.2, 5), Next::more);
  EXPECT_EQ(next(9, 4), Next::more);
  EXPECT_EQ(next(9, 5), Next::confirm) << "at once; nothing is accepted by that";
  EXPECT_EQ(next(1.2, 15), Next::more);
  EXPECT_EQ(next(1.2, 30), Next::more);
  EXPECT_EQ(next(1.2, 60), Next::confirm);
  EXPECT_EQ(next(0.999, 15), Next::give_up);
  EXPECT_EQ(next(0.999, 16), Next::give_up);
  const Pairs pairs = constant(1.2, 15);
  EXPECT_EQ(after_pair({&pairs, 1}, 0, options, true), Next::confirm) << "it took long";
  EXPECT_EQ(after_pair({&pairs, 1}, 0.25, options, true), Next::give_up) << "processes differ more";
}

TEST(Rule, APlanFitsTheGainAndTheTime) {
  SimulatedJudge judge({0, 0.03}, 1);
  Pairs small{{}, {}, 1}, large = small;
  judge.take(&small, 0.02, 60);
  judge.take(&large, 0.2, 60);
  const Confirmation a = confirmation_of({&small, 1}, 0.2, 0.02),
                     b = confirmation_of({&large, 1}, 0.2, 0.02),
                     slow = confirmation_of({&small, 1}, 0.2, 5),
                     starts = confirmation_of({&small, 1}, 2, 0.02);
  EXPECT_EQ(a.sittings, 16);
  EXPECT_EQ(a.pairs, 8);
  EXPECT_EQ(b.sittings, 16);
  EXPECT_EQ(b.pairs, 3);
  EXPECT_EQ(slow.sittings, 8);
  EXPECT_EQ(slow.pairs, 3);
  EXPECT_EQ(starts.sittings, 9);
  const Pairs naive = constant(20, 5);
  EXPECT_EQ(confirmation_of({&naive, 1}, 0.2, 1).sittings, 5);
  EXPECT_EQ(confirmation_of({&naive, 1}, 0.2, 1).pairs, 3);
}

TEST(Rule, GivingUpAConfirmationIsNeverAnAcceptance) {
  SimulatedJudge judge({0.01, 0.02}, 3);
  int given_up = 0;
  for (int n = 0; n < 2000; ++n) {
    Pairs sittings{{}, {}, 1, 4};
    while (sittings.a.size() < 64) {
      judge.take(&sittings, judge.effect(), 4);
      if (!futile({&sittings, 1})) continue;
      ++given_up;
      EXPECT_GT(p_value({&sittings, 1}), 0.04);
      break;
    }
  }
  EXPECT_GT(given_up, 1800);
}

Comparison comparison(const std::vector<double>& speeds, double pair) {
  Comparison c;
  c.sitting = 3;
  SimulatedJudge judge({0, pair}, 5);
  for (const double speed : speeds) {
    c.candidates.push_back({std::to_string(speed), "", ""});
    c.verdicts.emplace_back();
    c.seconds.push_back({judge.compare(1 / speed - 1, 9, 3).b});
  }
  return c;
}

TEST(Rule, OnlyWhatIsBetterBeyondTheIntervalWins) {
  const std::vector<TimedShape> shapes{{"s", {}, 1}};
  EXPECT_EQ(winner_of(comparison({1, 1.3, 1.1}, 0.01), shapes, {0}), 1u);
  EXPECT_EQ(winner_of(comparison({1, 0.9, 1.1}, 0.01), shapes, {0}), 2u);
  EXPECT_EQ(winner_of(comparison({1.3, 1, 1.1}, 0.01), shapes, {0}), 0u);
  EXPECT_EQ(winner_of(comparison({1}, 0.01), shapes, {0}), 0u);
  // The smallest median of three is another one in two of three cases; here nobody is better.
  EXPECT_EQ(winner_of(comparison({1, 1.005, 1.01, 1.0}, 0.1), shapes, {0}), 0u);
  // The library holds first: the incumbent must beat it, and others the one that holds then.
  EXPECT_EQ(winner_of(comparison({1, 1.3, 1.1}, 0.01), shapes, {1, 0}), 1u);
  EXPECT_EQ(winner_of(comparison({1.3, 1, 1.31}, 0.03), shapes, {1, 0}), 0u);
  EXPECT_EQ(winner_of(comparison({1, 1.001, 1.3}, 0.03), shapes, {1, 0}), 2u);
  Comparison failed = comparison({1, 1.3, 1.1}, 0.01);
  failed.verdicts[1].verdict = Verdict::wrong_result;
  EXPECT_EQ(winner_of(failed, shapes, {0}), 2u);
  EXPECT_EQ(winner_of(failed, shapes, {1}), 2u);
  failed.seconds[2][0].pop_back();
  EXPECT_EQ(winner_of(failed, shapes, {0}), 0u) << "half a measurement proves nothing";
}

// More work than processors: one of two workers waits for as long as it lives, and the other is
// three times as fast in every pair. Twins of it look obvious, and are not believed.
TEST(Rule, AWorkerThatWaitsConvincesOfNothing) {
  EXPECT_LE(error_rate({1.1, 0.3, false, {}, 0.2}, 60).error, 0.13);
  EXPECT_LE(error_rate({1.1, 0.9}, 60).error, 0.13);
}

// By chance alone: the incumbent loses its place to an equal one in a few per cent of all runs.
TEST(Rule, AnEqualFinalistReplacesNobody) {
  const std::vector<TimedShape> shapes{{"s", {}, 1}};
  int replaced = 0;
  for (int run = 0; run < 1000; ++run) {
    SimulatedJudge judge({0.01, 0.05}, uint64_t(run));
    Comparison c;
    c.sitting = 3;
    for (int n = 0; n < 4; ++n) {
      c.candidates.push_back({std::to_string(n), "", ""});
      c.verdicts.emplace_back();
      c.seconds.push_back({judge.compare(0, 9, 3).b});
    }
    replaced += winner_of(c, shapes, {0}) != 0;
  }
  EXPECT_LT(replaced, 40);
}

// ---- by simulation: a few runs here, many in the full tier ----

TEST(Rule, ARealGainIsFound) {
  EXPECT_GE(power({0, 0.03}, 0.03, 8, 300), 0.8);
  EXPECT_GE(power({0, 0.15}, 0.10, 8, 300), 0.8);
}

TEST(Rule, EqualProgramsAreNotAccepted) {
  // At most 5 % of the runs; three deviations of 60 runs above that are 13 %.
  EXPECT_LE(error_rate({0, 0.08}, 60).error, 0.13);
  EXPECT_LE(error_rate({0.01, 0.02}, 60).error, 0.13);
}

TEST(Rule, FinalIntervalsCover) {
  for (const World& world : {World{0, 0.02}, World{0.01, 0.02}, World{0.02, 0.08, true}}) {
    const double covered = coverage(world, 9, 3, 2000);
    EXPECT_GE(covered, 0.93);
    EXPECT_LE(covered, 0.97);
  }
}

// A recorded twin is a sitting: a fresh worker of the same program. Sixteen of them in a row are a
// confirmation, and none is believed; had they been a little faster, all would be.
TEST(Rule, RecordedTwinsAreNotBelieved) {
  for (const char* file : kRecordings) {
    std::ifstream in(source_dir() + "/tests/evolve/data/" + file);
    const nlohmann::json recording = nlohmann::json::parse(in, nullptr, false);
    std::vector<Pairs> confirmations;
    int sittings = 0;
    for (const auto& twin : recording.at("samples")) {
      if (twin.at("candidate").size() < 14) continue;
      if (sittings++ % 16 == 0) confirmations.push_back({{}, {}, 1, 8});
      for (size_t n = 0; n < 8; ++n) {
        confirmations.back().a.push_back(twin.at("candidate")[n]);
        confirmations.back().b.push_back(twin.at("incumbent")[n]);
      }
    }
    confirmations.pop_back();  // fewer than sixteen
    ASSERT_GE(confirmations.size(), 9u);
    Spending spending, faster;
    int found = 0;
    for (Pairs& pairs : confirmations) {
      EXPECT_FALSE(spending.accepts(p_value({&pairs, 1}))) << file;
      for (double& seconds : pairs.b) seconds *= 1.1;
      found += faster.accepts(p_value({&pairs, 1}));
    }
    EXPECT_GE(found, int(confirmations.size()) - 1) << file;
  }
}

TEST(FullRule, RealGainsAreFound) {
  for (const int before : {0, 8, 30}) {
    EXPECT_GE(power({0, 0.03}, 0.03, before, 2000), 0.8) << before;
    EXPECT_GE(power({0, 0.15}, 0.10, before, 2000), 0.8) << before;
    EXPECT_GE(power({0, 0.15, true}, 0.10, before, 2000), 0.8) << before;
    EXPECT_GE(power(recorded_world(kRecordings[0]), 0.10, before, 2000), 0.8) << before;
    EXPECT_GE(power(recorded_world(kRecordings[1]), 0.05, before, 2000), 0.8) << before;
  }
}

TEST(FullRule, ARunOf300EqualProgramsAcceptsOneInAtMostFivePercent) {
  for (const bool heavy : {false, true})
    for (const double process : {0.0, 0.005, 0.01, 0.02})
      for (const double pair : {0.02, 0.08})
        EXPECT_LE(error_rate({process, pair, heavy}, 300).error, 0.05)
            << process << " " << pair << " " << heavy;
  for (const char* file : kRecordings)
    EXPECT_LE(error_rate(recorded_world(file), 300).error, 0.05) << file;
}

// Nothing about processes is normal here: one in ten is slower, by more than pairs vary.
TEST(FullRule, ProcessesOfWhichFewAreSlowerFoolItNoMore) {
  for (const double slower : {0.01, 0.05})
    for (const double rare : {0.1, 0.5})
      EXPECT_LE(error_rate({slower, 0.01, false, {}, rare}, 300).error, 0.05)
          << slower << " " << rare;
}

TEST(FullRule, WorkersThatWaitConvinceOfNothing) {
  EXPECT_LE(error_rate({1.1, 0.1, false, {}, 0.2}, 400).error, 0.05);
  EXPECT_LE(error_rate({1.1, 0.9}, 400).error, 0.05);
  EXPECT_LE(error_rate({1.1, 0.9, true}, 400).error, 0.05);
}

TEST(FullRule, AcceptedStepsMakeNoErrorMoreLikely) {
  EXPECT_LE(error_rate({0, 0.03}, 400, 300, 15).error, 0.05);
  EXPECT_LE(error_rate({0.01, 0.02}, 400, 300, 15).error, 0.05);
}

TEST(FullRule, FinalIntervalsCover) {
  const auto check = [](const World& world, const std::string& name) {
    const double covered = coverage(world, 9, 3, 10000);
    EXPECT_GE(covered, 0.93) << name;
    EXPECT_LE(covered, 0.97) << name;
  };
  for (const bool heavy : {false, true})
    for (const double process : {0.0, 0.005, 0.01, 0.02, 0.03})
      for (const double pair : {0.02, 0.08}) check({process, pair, heavy}, std::to_string(process));
  for (const char* file : kRecordings) check(recorded_world(file), file);
}

// Where few processes are slower, nine sittings often have none of them or several: intervals
// are wider than they need to be, and hold the truth more often than they say. Never less.
TEST(FullRule, FinalIntervalsCoverMoreWhereFewProcessesAreSlower) {
  for (const double pair : {0.01, 0.02}) {
    const double covered = coverage({0.05, pair, false, {}, 0.1}, 9, 3, 10000);
    EXPECT_GE(covered, 0.95) << pair;
    EXPECT_LE(covered, 0.985) << pair;
  }
}

}  // namespace
}  // namespace attune::evolve
