// What `attune evolve` shows: a live line, and the table at the end.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "evolve/run.hpp"

namespace attune::cli {

// A line on stderr that rewrites itself on a terminal; elsewhere a plain line at every new best and
// every 10 seconds.
class EvolveProgress {
 public:
  explicit EvolveProgress(const evolve::RunMeta& meta);
  void show(const evolve::Progress& progress);
  void note(const std::string& what);  // of a judgement that takes long
  void end();

 private:
  std::optional<evolve::ExternalSpec> external_;
  bool animate_;
  bool drawn_ = false;
  double last_ = -1;
  std::chrono::steady_clock::time_point said_;  // when the last line was
  std::string best_;
};

// A line on the best of a run that did not come to its comparison.
std::string best_so_far(const evolve::RunMeta& meta, const evolve::RunResult& result);

struct FinalTable {
  std::string text;
  evolve::Json json;
  bool verified = false;  // the winner passed every check of the final comparison
};
FinalTable final_table(const evolve::RunMeta& meta, const evolve::RunResult& result);

}  // namespace attune::cli
