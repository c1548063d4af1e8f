// What a run leaves for people: evidence.json, report.html, best/.
#pragma once

#include <string>

#include "evolve/genome/genome.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

// Writes all of it into the run's folder, each file whole or not at all. `space` prints genes; the
// source of the best program is made from it.
Status write_report(const Store& store, const Space& space);

// In best/: "best_program.cpp", or ".cu" of a run on a GPU.
std::string best_program_name(const RunMeta& meta);

// The pieces, for tests.
Json evidence_of(const Store& store);
std::string report_html(const Json& evidence, const Space& space);
std::string best_program(const Json& evidence, const Space& space);
std::string accepted_steps(const Json& evidence, const Space& space);  // steps.diff, of programs
Json best_info(const Json& evidence, const Space& space);              // best_program_info.json

}  // namespace attune::evolve
