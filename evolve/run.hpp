// attune::evolve(): problems and a budget in, a faster kernel and its proof out.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "evolve/genome/genome.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/final.hpp"
#include "evolve/propose/proposer.hpp"
#include "evolve/propose/search.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

// Live news of a run; the strings are for people.
struct Progress {
  int64_t evaluations = 0, failed = 0;
  double seconds = 0, left = 0;  // left: of the budget, by time or by the rate so far
  double speedup = 1;            // of the best over the start
  Interval last;                 // the last accepted step over its incumbent
  bool comparing = false;        // the search is over
  std::string best, now;         // ids
};

struct RunOptions {
  RunMeta meta;
  std::string folder;
  bool resume = false;
  std::function<void(const Progress&)> on_progress;
  std::function<bool()> stop;  // Ctrl-C
  int final_rounds = 27;
  // Of a program: who proposes beside the search, and which share of the proposals.
  std::vector<std::shared_ptr<Proposer>> proposers;
  double proposers_share = 0.5;
  Json proposers_settings;  // recorded, so that a resumed run has them; without keys
  std::function<void(const std::string&)> on_news;  // of proposers, for people
};

struct RunResult {
  std::string best;  // its id: never of a kernel that is worse than what the library runs
  Genome genome;
  double speedup = 1;  // over the start, as the search itself measured it
  Comparison final;    // the start, what the library runs, and the best of the search
  Decision decision;   // what follows from it
  int64_t evaluations = 0;
  bool interrupted = false;
  bool exhausted = false;  // nothing new was left to try before the budget was spent
};

// Where candidates are compiled. It is emptied when a sitting begins, and gone when it ends.
inline std::string scratch_folder(const std::string& run) { return run + "/scratch"; }

// Searches until the budget is spent, then compares the start, what the library runs and the best
// of the search in fresh workers. What the library runs is the second candidate of every run. A
// resumed run takes everything from its folder but a budget, which may be given anew and counts
// from the first sitting on. When it fails (a full disk), or is stopped, `result` has the best so
// far, without a comparison.
// The space learns what proposers bring.
Status run(const RunOptions& options, Space& space, Evaluator& evaluator, RunResult* result);

// The same with the results of a recorded run in place of measurements; fails where a proposal
// differs from the recorded one, and where a recorded number, the best, its ratios or what may be
// promoted does not follow from samples.
Status replay(const std::string& folder, Space& space, int64_t* evaluations);

}  // namespace attune::evolve
