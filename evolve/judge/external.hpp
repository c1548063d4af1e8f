// An evaluator whose scores come from the user: their Python file, or their command.
//
// A score becomes a pseudo-time, so that the rule of the run decides as it does elsewhere. Every
// evaluation is a process of its own: each pair of two of them is a sitting. Where no program was
// ever given two scores, two pairs say all; otherwise candidate and incumbent are evaluated in
// turns, and what looks better is evaluated anew.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/external_run.hpp"

namespace attune::evolve {

struct ExternalOptions {
  ExternalSpec spec;
  ExternalPlace place;
  std::string programs;              // the folder of sources with relative paths
  uint64_t seed = 0;                 // of who goes first
  std::optional<ExternalRun> start;  // an evaluation of the start that was just made
  // Before each further evaluation of one judgement: they may take minutes together.
  std::function<void(const std::string&)> on_step;
};

std::unique_ptr<Evaluator> external_evaluator(ExternalOptions options);

// The shape that stands for the score in a run's shapes.
TimedShape score_shape(const ExternalSpec& spec);

}  // namespace attune::evolve
