// Power, error rates and coverage of the rule and of the one before it, as a table in Markdown:
//   cmake --build build --target attune_judge_table && build/attune_judge_table
#include <cstdio>
#include <cstdlib>

#include "tests/evolve/judge_sim.hpp"
#include "tests/evolve/rule_1.hpp"

namespace attune::evolve {
namespace {

struct Named {
  std::string name;
  World world;
};

std::vector<Named> worlds() {
  std::vector<Named> all;
  for (const bool heavy : {false, true})
    for (const double process : {0.0, 0.005, 0.01, 0.02})
      for (const double pair : {0.02, 0.08}) {
        char name[80];
        std::snprintf(name, sizeof name, "process %.1f %%, pair %.0f %%%s", 100 * process,
                      100 * pair, heavy ? ", heavy tails" : "");
        all.push_back({name, {process, pair, heavy, {}}});
      }
  all.push_back({"one process in ten 5 % slower, pair 1 %", {0.05, 0.01, false, {}, 0.1}});
  all.push_back({"one process in two 5 % slower, pair 1 %", {0.05, 0.01, false, {}, 0.5}});
  all.push_back({"recorded, CPU", recorded_world("self_test_all_cores.json")});
  all.push_back({"recorded, H200", recorded_world("self_test_h200.json")});
  return all;
}

// Logs of pairs for rule 1.
struct Old {
  SimulatedJudge judge;
  rule_1::Judge rule;

  Old(const World& world, uint64_t seed) : judge(world, seed) {
    rule.margin = rule_1::margin_of(workers(0)(20));
  }
  std::function<rule_1::Logs(int)> workers(double gain) {
    const double log = std::log1p(gain) + judge.effect();
    return [this, log](int count) {
      Pairs pairs;
      judge.take(&pairs, log, count);
      rule_1::Logs logs;
      for (const double b : pairs.b) logs.push_back(std::log(b));
      return logs;
    };
  }
  bool accepts(double gain) {
    return rule.accepts([&] { return workers(gain); });
  }
};

double old_power(const World& world, double gain, int before, int runs) {
  int found = 0;
  for (int run = 0; run < runs; ++run) {
    Old old(world, uint64_t(run) + 1000000);
    old.rule.looked_at.assign(size_t(before), 0.5);
    found += old.accepts(gain);
  }
  return double(found) / runs;
}

Rates old_error_rate(const World& world, int runs, int candidates) {
  Rates rates;
  for (int run = 0; run < runs; ++run) {
    Old old(world, uint64_t(run));
    bool wrong = false;
    for (int n = 0; n < candidates; ++n) wrong |= old.accepts(0);
    rates.error += double(wrong) / runs;
    rates.pairs += double(old.rule.timed) / (double(runs) * candidates);
    rates.confirmed += double(old.rule.confirmed) / (double(runs) * candidates);
  }
  return rates;
}

double old_coverage(const World& world, int runs) {
  SimulatedJudge judge(world, 99);
  int holds = 0;
  for (int run = 0; run < runs; ++run) {
    rule_1::Logs logs;
    for (const double b : judge.compare(0.07, 9, 3).b) logs.push_back(std::log(b));
    const rule_1::Bounds bounds = rule_1::interval(logs, 3);
    holds += bounds.low <= std::log(1.07) && std::log(1.07) <= bounds.high;
  }
  return double(holds) / runs;
}

void print(int runs) {
  std::printf(
      "| a real gain | pairs vary by | found by rule 1 | by rule 2 |\n| --- | --- | ---: | ---: "
      "|\n");
  const auto row = [&](const char* gain_text, double gain, const char* name, const World& world) {
    std::printf("| %s | %s | %.0f %% | %.0f %% |\n", gain_text, name,
                100 * old_power(world, gain, 29, runs), 100 * power(world, gain, 8, 10 * runs));
    std::fflush(stdout);
  };
  row("1 %", 0.01, "1 %", {0, 0.01});
  row("2 %", 0.02, "3 %", {0, 0.03});
  row("3 %", 0.03, "3 %", {0, 0.03});
  row("5 %", 0.05, "8 %", {0, 0.08});
  row("5 %", 0.05, "15 %", {0, 0.15});
  row("10 %", 0.10, "15 %", {0, 0.15});
  row("10 %", 0.10, "15 %, heavy tails", {0, 0.15, true});
  row("20 %", 0.20, "15 %", {0, 0.15});
  row("3 %", 0.03, "2 %, processes 1 %", {0.01, 0.02});
  row("6 %", 0.06, "2 %, processes 2 %", {0.02, 0.02});
  row("5 %", 0.05, "recorded, CPU", recorded_world("self_test_all_cores.json"));
  row("10 %", 0.10, "recorded, CPU", recorded_world("self_test_all_cores.json"));
  row("3 %", 0.03, "recorded, H200", recorded_world("self_test_h200.json"));
  row("5 %", 0.05, "recorded, H200", recorded_world("self_test_h200.json"));

  std::printf(
      "\n| 300 equal programs | runs that accept one: rule 1 | rule 2 | pairs a candidate: rule 1 "
      "| "
      "rule 2 | confirmed: rule 1 | rule 2 | sittings a candidate | intervals that cover: rule 1 | "
      "rule 2 |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const Named& w : worlds()) {
    const Rates before = old_error_rate(w.world, std::max(1, runs / 5), 300),
                after = error_rate(w.world, 5 * runs);
    std::printf(
        "| %s | %.0f %% | %.1f %% | %.0f | %.0f | %.0f %% | %.0f %% | %.2f | %.1f %% | %.1f %% |\n",
        w.name.c_str(), 100 * before.error, 100 * after.error, before.pairs, after.pairs,
        100 * before.confirmed, 100 * after.confirmed, after.sittings,
        100 * old_coverage(w.world, 10 * runs), 100 * coverage(w.world, 9, 3, 100 * runs));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace attune::evolve

int main(int argc, char** argv) {
  attune::evolve::print(argc > 1 ? std::atoi(argv[1]) : 120);
  return 0;
}
