// `attune evolve PROGRAM` by scores: of an evaluator of the user's own (--evaluator,
// --eval-command), or of Attune's judge of torch modules for a PROGRAM.py without one.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "cli/evolve_options.hpp"
#include "evolve/judge/external.hpp"

namespace attune::cli {

void add_external_options(CLI::App* command, EvolveOptions* o);

// The path of this Python; where none is named, of that of the active virtual environment, of the
// one here, of the system's.
std::string python_named(std::string python);

bool is_external(const EvolveOptions& o);  // an evaluator of the user's own
bool is_scored(const EvolveOptions& o);    // or a torch module

// The program in whatever language, with the blocks that it may take. Refused, with the line, where
// nothing in it may change.
evolve::ProgramSource external_program_of(const EvolveOptions& o);

// The run that the options ask for. The start is evaluated for it, and `start` gets what came of
// that: the first score of the run. Throws where it has none, with what the evaluator said.
evolve::RunMeta external_meta(const EvolveOptions& o, std::optional<evolve::ExternalRun>* start);

// Refuses a recorded run whose evaluator is another one now, or that these options do not name. A
// --python replaces the recorded one.
void check_external(const EvolveOptions& o, const std::string& folder, evolve::RunMeta* meta);

std::unique_ptr<evolve::Evaluator> external_evaluator_of(const evolve::RunMeta& meta,
                                                         const evolve::EvaluatorOptions& options,
                                                         std::optional<evolve::ExternalRun> start);

}  // namespace attune::cli
