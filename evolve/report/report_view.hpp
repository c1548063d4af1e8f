// A run as its reports see it: what was stored, and what follows from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/judge/final.hpp"
#include "evolve/propose/tally.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

struct RunView {
  const Space* space = nullptr;
  RunMeta meta;
  std::string head;  // of the chain of hashes; empty: it has none
  std::vector<Record> records;
  std::optional<Noise> noise;
  std::optional<Comparison> final, finalists;
  std::vector<OperatorCount> operators;
  std::vector<Elite> elites;
  std::vector<Tally> tallies;  // of proposers

  std::vector<int64_t> accepted;  // the start, and each step that became the best
  // Indices into `final`, -1 when it has none. One candidate may be two of them. The library's is
  // what calls of the first shape run; where calls of other shapes run others, `libraries` has one
  // for each shape.
  int start = -1, library = -1, winner = -1;
  std::vector<int> libraries;
  std::optional<Decision> decision;  // nothing in runs of versions that made none
  Candidate best;                    // its id is empty when nothing ran
  std::optional<Genome> genome;      // of a typed best
  int64_t best_n = -1;               // its record; the library's own choice may have none
  std::vector<int64_t> lineage;      // from the start to the best

  const Record* record(int64_t n) const {
    return n >= 0 && n < int64_t(records.size()) ? &records[size_t(n)] : nullptr;
  }
};
RunView view_of(const Json& evidence, const Space& space);  // throws Json::exception

const Family* family_of(const Space& space, const Genome& genome);

// How much faster the second of two candidates of a comparison is, over all shapes or on one;
// nothing where one of them was not timed.
std::optional<Interval> ratio_of(const RunView& view, const Comparison& c, int slower, int faster,
                                 int shape = -1);
// How much faster a candidate of the final comparison is than what calls of each shape run.
std::optional<Interval> over_library(const RunView& view, int which, int shape = -1);
double speed_of(const Record& record);  // relative to the start

// What the run gained over the library's own choice: its interval lies above 1, and it is more than
// two equal programs differ by. That is also what --promote asks for, shape by shape.
bool gained(const RunView& view);

// One or two sentences for people: what was gained over the start and over the library's own
// choice, with intervals, or that nothing was.
std::string gain_text(const RunView& view);

// A child against its parent. `direct`: it was compared with this very parent; otherwise the
// interval is put together from those of both against their incumbents.
struct Gain {
  Interval ratio;
  bool direct = false;
};
std::optional<Gain> gain_of(const RunView& view, const Record& child);

// "block_q 64 → 96, mr 4 → 6", or "naive → fused".
std::string changes_of(const RunView& view, const Record& parent, const Record& child);

// A reign of one family over the accepted steps.
struct Rung {
  int family = 0;
  int64_t first = 0, last = 0;  // accepted records
  double arrival = 1;           // the first one's speed over what was best before it
};
std::vector<Rung> ladder_of(const RunView& view);

}  // namespace attune::evolve
