// What proposers brought so far, by the run's events; and which model is asked next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evolve/propose/dice.hpp"
#include "evolve/propose/exchange.hpp"
#include "evolve/propose/model.hpp"

namespace attune::evolve {

struct Tally {
  std::string op, who;                              // a model; the files of persons together
  int64_t questions = 0, requests = 0, failed = 0;  // requests: with retries
  int64_t tokens_in = 0, tokens_out = 0;
  bool estimated = false;  // some of the tokens
  double cost = 0;         // USD
  bool cost_known = true;  // of all answers
  double seconds = 0;
  int64_t answers = 0, applied = 0, not_applied = 0, cheated = 0, duplicates = 0;
  int64_t judged = 0, ok = 0, accepted = 0;
  double gain = 0;  // sum of the logs of the accepted steps' speed-ups
};

// In the order in which they came.
std::vector<Tally> tallies_of(const Exchanges& exchanges, const std::vector<Record>& records);
Json to_json(const Tally& tally);
Tally tally_of(const Json& json);

// By gain for a dollar, or for a question where costs are not known; untried ones have their
// chance, and each keeps a share by its weight.
size_t choose_model(const std::vector<ModelChoice>& models, const std::vector<Tally>& tallies,
                    Dice* dice);
// The chance of each.
std::vector<double> chances_of(const std::vector<ModelChoice>& models,
                               const std::vector<Tally>& tallies);

}  // namespace attune::evolve
