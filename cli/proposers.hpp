// Who proposes beside the search: language models and persons, as `attune evolve` is asked.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_settings.hpp"
#include "evolve/propose/model.hpp"
#include "evolve/run.hpp"

namespace attune::cli {

struct EvolveOptions;

struct ProposerOptions {
  std::vector<std::string> models, prices, propose;
  evolve::ModelSettings settings;  // its models and prices come from the above

  bool any() const { return !settings.url.empty() || !propose.empty(); }
};

void add_proposer_options(CLI::App* command, ProposerOptions* options);

// What a config.yaml says of models, where the options do not: its endpoint counts only where there
// is a key for it, or where it is this machine's. False: no model will be asked.
bool take_models(const ConfigModels& config, ProposerOptions* options);

// Throws UsageError for what makes no sense. The key of a new run, which the environment has no
// longer then: call it before anything is started.
std::string check_proposers(const EvolveOptions& options);
// Joins what was asked for, or what the run in the folder was asked for, to the run.
void add_proposers(const EvolveOptions& options, std::string key, evolve::RunOptions* run);

}  // namespace attune::cli
