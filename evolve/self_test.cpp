#include "evolve/self_test.hpp"

#include <fmt/format.h>

namespace attune::evolve {
namespace {

constexpr double kAlpha = 0.05;  // of all acceptances of a run together
constexpr int kNoisePairs = 20;

}  // namespace

bool accepts(const std::vector<double>& p_values, const Interval& speedup) {
  return speedup.low > 1 && holm(p_values).back() < kAlpha;
}

SelfTest self_test(Evaluator& evaluator, const Candidate& candidate, int twins,
                   const std::function<bool(const SelfTest&)>& told) {
  SelfTest result;
  result.noise = evaluator.noise(candidate, kNoisePairs);
  std::vector<double> p_values;
  for (int n = 1; n <= twins && told(result); ++n) {
    Candidate twin = candidate;
    twin.id = fmt::format("{} #{}", candidate.id, n);
    const Evaluation& e = result.twins.emplace_back(evaluator.evaluate(twin, candidate));
    if (!e.ok()) {
      ++result.failed;
    } else if (e.stage == Stage::measure) {
      p_values.push_back(e.p);
      result.accepted += accepts(p_values, e.speedup) ? 1 : 0;
    }
  }
  return result;
}

int accepted_of(const std::vector<std::vector<Pairs>>& twins, double margin) {
  int accepted = 0;
  std::vector<double> p_values;
  for (size_t n = 0; n < twins.size(); ++n) {
    p_values.push_back(p_not_above(twins[n], margin, n));
    accepted += accepts(p_values, combined_ratio(twins[n], 0.95, n)) ? 1 : 0;
  }
  return accepted;
}

}  // namespace attune::evolve
