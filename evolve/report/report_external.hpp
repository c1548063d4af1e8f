// What is shown of a run whose scores come from the user's evaluator: which numbers it claimed, and
// which are ours.
#pragma once

#include <string>

#include "evolve/report/report_view.hpp"

namespace attune::evolve {

// The median of the scores that the evaluator gave; nothing where it gave none.
std::optional<double> claimed_score(const Evaluation& evaluation);

// A gain of pseudo-times as scores differ by it, with its interval: "1.31x (1.28x..1.35x)".
std::string gain_interval(const ExternalSpec& spec, const std::optional<Interval>& ratio);

std::string external_gain_text(const RunView& view);  // of a run with a final comparison
std::string external_heading(const RunView& view);    // the first lines of the page
// Scores of a comparison, each candidate over the first one.
std::string external_comparison(const RunView& view, const Comparison& c,
                                const std::string& caption);
std::string claims_section(const RunView& view);  // all metrics, and the artifacts of the best

}  // namespace attune::evolve
