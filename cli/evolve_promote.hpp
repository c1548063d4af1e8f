// `attune evolve --promote`: from a run's winner to rows of a tuned table.
#pragma once

#include <stdexcept>
#include <string>

#include "cli/evolve_options.hpp"
#include "evolve/run.hpp"

namespace attune::cli {

// Before the run: an error that would be known only after it, when it is too late. Throws.
void check_table(const EvolveOptions& o);

// One row for each shape on which the winner beats what calls run, by the interval of the final
// comparison and by more than the noise. A row that the run was not compared with stays.
void promote(const EvolveOptions& o, const evolve::RunMeta& meta, const evolve::Space& space,
             const std::string& folder, const evolve::RunResult& result);

}  // namespace attune::cli
