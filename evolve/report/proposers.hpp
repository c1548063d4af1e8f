// The part of a report about models and persons that proposed.
#pragma once

#include <string>

#include "evolve/report/report_view.hpp"

namespace attune::evolve {

// Empty where none was asked.
std::string proposers_section(const RunView& view, const Json& evidence);
// A line for each, for the terminal.
std::string proposers_text(const std::vector<Tally>& tallies);

}  // namespace attune::evolve
