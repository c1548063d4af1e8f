// Can noise fool the judge here? The same program, again and again, as if it were a new candidate:
// none of them may be accepted.
#pragma once

#include <functional>
#include <vector>

#include "evolve/judge/evaluator.hpp"

namespace attune::evolve {

struct SelfTest {
  Noise noise;
  std::vector<Evaluation> twins;
  int accepted = 0, failed = 0;
};

// `told` hears of each twin; false stops.
SelfTest self_test(Evaluator& evaluator, const Candidate& candidate, int twins,
                   const std::function<bool(const SelfTest&)>& told);

}  // namespace attune::evolve
