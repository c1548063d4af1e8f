// The judge without a machine: pairs of times are drawn, and the rule itself does the rest. What
// the cascade does between its calls of the rule is repeated here, and nothing else.
#pragma once

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "evolve/judge/rule.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {

// How times vary. A process is faster or slower than another of the same program for as long as it
// lives; a pair of samples has an error of its own.
struct World {
  double process = 0;              // deviation of a process
  double pair = 0.02;              // deviation of a pair
  bool heavy = false;              // Student's t with 3 degrees of freedom instead of a normal
  std::vector<double> recorded{};  // logs to draw the pairs' errors from instead
  double rare = 0;  // so many processes are slower by `process`, and all others equal
};

// The pairs of a recorded self-test, each about the middle of its twin, with the sign of chance.
inline World recorded_world(const std::string& file) {
  std::ifstream in(source_dir() + "/tests/evolve/data/" + file);
  const nlohmann::json recording = nlohmann::json::parse(in, nullptr, false);
  World world;
  std::mt19937_64 coin(1);
  for (const auto& twin : recording.at("samples")) {
    const std::vector<double> a = twin.at("candidate"), b = twin.at("incumbent");
    if (a.size() < 14) continue;  // given up in the race: a choice of the slow ones
    std::vector<double> logs;
    for (size_t n = 0; n < a.size(); ++n) logs.push_back(std::log(b[n] / a[n]));
    const double middle = median(logs);
    for (const double log : logs) world.recorded.push_back((coin() & 1 ? 1 : -1) * (log - middle));
  }
  return world;
}

class SimulatedJudge {
 public:
  SimulatedJudge(World world, uint64_t seed) : world_(std::move(world)), random_(seed) {}

  // A/A, as a run measures it before it believes anything.
  Noise measure_noise() {
    std::vector<Pairs> aa{{{}, {}, 1, 4}};
    for (int sitting = 0; sitting < 8; ++sitting) take(&aa[0], effect(), 4);
    const Noise noise = noise_of(aa);
    margin_ = noise.margin;
    return noise;
  }

  // A candidate that is so much faster than the incumbent.
  Evaluation evaluate(double gain) {
    const double speed = std::log1p(gain), here = speed + effect();
    const EvaluatorOptions options;
    Evaluation e;
    e.stage = Stage::measure;
    std::vector<Pairs> pairs(1);
    Next next = Next::more;
    while (next == Next::more) {
      take(&pairs[0], here, 1);
      ++timed;
      next = after_pair(pairs, margin_, options, false);
    }
    if (next == Next::confirm) {
      const Confirmation plan = confirmation_of(pairs, 0.2, 0.02);
      pairs = {{{}, {}, 1, plan.pairs}};
      for (int n = 0; n < plan.sittings; ++n) {
        take(&pairs[0], speed + effect(), plan.pairs);
        timed += plan.pairs;
        ++sittings;
        if (futile(pairs)) break;
      }
      ++confirmed;
    }
    e.sitting = pairs[0].block;
    e.p = p_value(pairs);
    return e;
  }

  // The final comparison of two programs.
  Pairs compare(double gain, int count, int rounds) {
    Pairs pairs{{}, {}, 1, rounds};
    for (int n = 0; n < count; ++n) take(&pairs, std::log1p(gain) + effect(), rounds);
    return pairs;
  }

  void take(Pairs* pairs, double log, int count) {
    for (int n = 0; n < count; ++n) {
      pairs->a.push_back(1);
      pairs->b.push_back(std::exp(log + error()));
    }
  }
  // What two fresh processes of one program differ by.
  double effect() { return world_.process * (process() - process()); }

  int64_t timed = 0, sittings = 0, confirmed = 0;  // what it cost

 private:
  double process() {
    return world_.rare > 0 ? double(chance_(random_) < world_.rare) : normal_(random_);
  }
  double error() {
    if (!world_.recorded.empty()) return world_.recorded[random_() % world_.recorded.size()];
    return world_.pair * (world_.heavy ? student_(random_) / std::sqrt(3.0) : normal_(random_));
  }

  World world_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> chance_;
  std::student_t_distribution<double> student_{3};
  double margin_ = 0;
};

// The share of runs that accept one of `candidates` equal programs. Each `real`-th candidate is a
// tenth faster: that it is accepted is no error, and must not make one more likely.
struct Rates {
  double error = 0, pairs = 0, sittings = 0, confirmed = 0;  // the last three: of a candidate
};
inline Rates error_rate(const World& world, int runs, int candidates = 300, int real = 0) {
  Rates rates;
  for (int run = 0; run < runs; ++run) {
    SimulatedJudge judge(world, uint64_t(run));
    judge.measure_noise();
    Spending spending;
    bool wrong = false;
    for (int n = 1; n <= candidates; ++n) {
      const bool better = real > 0 && n % real == 0;
      wrong |= believed(judge.evaluate(better ? 0.1 : 0), &spending) && !better;
    }
    const double all = double(runs) * candidates;
    rates.error += double(wrong) / runs;
    rates.pairs += double(judge.timed) / all;
    rates.sittings += double(judge.sittings) / all;
    rates.confirmed += double(judge.confirmed) / all;
  }
  return rates;
}

// How often a real gain is accepted, after `before` confirmations that accepted nothing.
inline double power(const World& world, double gain, int before, int runs) {
  int found = 0;
  for (int run = 0; run < runs; ++run) {
    SimulatedJudge judge(world, uint64_t(run) + 1000000);
    judge.measure_noise();
    Spending spending;
    for (int n = 0; n < before; ++n) spending.accepts(1);
    found += believed(judge.evaluate(gain), &spending);
  }
  return double(found) / runs;
}

// How often the interval of a final comparison holds the truth.
inline double coverage(const World& world, int sittings, int rounds, int runs) {
  int holds = 0;
  SimulatedJudge judge(world, 99);
  for (int run = 0; run < runs; ++run) {
    const Pairs pairs = judge.compare(0.07, sittings, rounds);
    const Interval ratio = combined_ratio({&pairs, 1}, 0.95);
    holds += ratio.low <= 1.07 && 1.07 <= ratio.high;
  }
  return double(holds) / runs;
}

}  // namespace attune::evolve
