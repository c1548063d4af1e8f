// Which genome next: islands of MAP-Elites, and two plain strategies to hold them against.
//
// The whole state of a strategy follows from its seed and the results it was told, in the order of
// their proposals: a run is resumed, and replayed, by telling them again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/propose/mutate.hpp"

namespace attune::evolve {

inline constexpr const char* kLibraryOp = "library";

struct Proposal {
  int64_t n = 0;
  Genome genome;
  std::string id;  // Space::print
  std::string
      op;  // the operator's name; "start" for the first, kLibraryOp for the library's choice
  int64_t parent = -1, other = -1;
  int island = 0;

  bool operator==(const Proposal&) const = default;
};

// What the search is told: only how fast, and whether it counts.
struct Outcome {
  bool ok = false;        // right, and measured
  double fitness = 0;     // log of the speed relative to the start; higher is better
  bool improved = false;  // better than the best before it, beyond noise
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Proposal n, in order from 0. Nothing when the space has no genome left that was not proposed.
  virtual std::optional<Proposal> propose() = 0;
  // A genome that came from outside, as the next proposal; nothing when it was proposed before.
  // What the space learned until then is an input like a result.
  virtual std::optional<Proposal> offer(const Genome& genome, const std::string& op,
                                        int64_t parent) = 0;
  // In the order of proposals. Whoever drives it keeps to n - W: propose() number n comes after
  // exactly the results up to n - W were told.
  virtual void tell(const Proposal& proposal, const Outcome& outcome) = 0;
  // 0..1: how much of the budget is used; late in a run the best are polished. It is an input like
  // a result: recorded, and replayed.
  virtual void progress(double fraction) = 0;
};

struct SearchOptions {
  uint64_t seed = 0;
  int islands = 3;
  int migrate_every = 24;         // proposals
  int stagnation = 40;            // results without an improvement before immigrants come
  double polish_from = 0.6;       // of the budget
  std::optional<Genome> start;    // nothing: the bottom of the ladder
  std::optional<Genome> library;  // the second proposal, where it is not the start
};

std::vector<std::string> strategy_names();  // "evolve", "random", "best-of-n"
std::unique_ptr<Strategy> make_strategy(const std::string& name, const Space& space,
                                        const SearchOptions& options);

// ---- what reports show ----

struct OperatorCount {
  std::string name;
  int64_t tried = 0, valid = 0, improved = 0;  // improved: entered or raised a cell of the archive
};

struct Elite {
  Cell cell;
  int island = 0;
  int64_t n = 0;  // its proposal
  double fitness = 0;
};

// Empty for strategies without an archive or operators.
std::vector<OperatorCount> operator_counts(const Strategy& strategy);
std::vector<Elite> elites(const Strategy& strategy);

}  // namespace attune::evolve
