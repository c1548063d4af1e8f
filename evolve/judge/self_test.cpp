#include "evolve/judge/self_test.hpp"

#include <fmt/format.h>

#include "evolve/judge/rule.hpp"

namespace attune::evolve {

SelfTest self_test(Evaluator& evaluator, const Candidate& candidate, int twins,
                   const std::function<bool(const SelfTest&)>& told) {
  SelfTest result;
  result.noise = evaluator.noise(candidate);
  Spending spending;
  for (int n = 1; n <= twins && told(result); ++n) {
    Candidate twin = candidate;
    twin.id = fmt::format("{} #{}", candidate.id, n);
    const Evaluation& e = result.twins.emplace_back(evaluator.evaluate(twin, candidate));
    if (!e.ok()) ++result.failed;
    if (believed(e, &spending)) ++result.accepted;
  }
  return result;
}

}  // namespace attune::evolve
