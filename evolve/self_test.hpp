// Can noise fool the judge here? The same program, again and again, as if it were a new candidate:
// none of them may be accepted.
#pragma once

#include <functional>
#include <vector>

#include "evolve/evaluator.hpp"
#include "evolve/store.hpp"

namespace attune::evolve {

struct SelfTest {
  Noise noise;
  std::vector<Evaluation> twins;
  int accepted = 0, failed = 0;
};

// Whether a candidate with the last of these p-values is accepted: below 5 % after Holm's
// correction over all that were looked at, with its interval above 1.
bool accepts(const std::vector<double>& p_values, const Interval& speedup);

// `told` hears of each twin; false stops.
SelfTest self_test(Evaluator& evaluator, const Candidate& candidate, int twins,
                   const std::function<bool(const SelfTest&)>& told);

// The acceptances that recorded samples lead to, judged anew.
int accepted_of(const std::vector<std::vector<Pairs>>& twins, double margin);

}  // namespace attune::evolve
