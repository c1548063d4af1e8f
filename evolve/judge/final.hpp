// What the comparisons at the end of a run say: who is best, by how much, and what may be promoted.
// The run decides by it; its report, --promote and --replay ask it again. All of it follows from
// samples.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "evolve/store/store.hpp"

namespace attune::evolve {

// How much faster a candidate of a comparison is than others, over all shapes or on one of them:
// `bases` has the place of the one that it is compared with on each shape. Nothing where one of
// them was not timed.
std::optional<Interval> ratio_over(const RunMeta& meta, const Comparison& c,
                                   const std::vector<int>& bases, int which, int shape = -1);

int place_of(const Comparison& c, const std::string& id);  // -1: it was not compared
// It passed its checks, and was timed on every shape.
bool measured(const Comparison& c, int which);

// By what the search measured: the incumbent, what the library runs, and the best few others.
std::vector<Candidate> finalists_of(const std::vector<Record>& records, const Candidate& incumbent,
                                    const std::vector<std::string>& library);
// Of the finalists that may be compared with the library's choice: all but that choice itself, or
// that alone where there is no other. Where calls of different shapes run different kernels, each
// of these may challenge the rest.
std::vector<Candidate> challengers_of(const std::vector<Candidate>& finalists,
                                      const std::vector<std::string>& library);
// The fastest of them by a comparison of all finalists: the first one, the incumbent where it is
// among them, unless another is better beyond the interval.
std::string fastest_of(const RunMeta& meta, const Comparison& finalists,
                       const std::vector<Candidate>& challengers);

struct Decision {
  std::string best;        // what the run hands back
  std::string challenger;  // the fastest finalist beside the library's choice
  bool stands = false;     // nothing was better than the library's choice: it is the best
  double margin = 0;       // what two equal programs differ by
  std::optional<Interval> over_start, over_library;  // of the challenger

  struct Shape {
    std::string name;
    std::string over;  // what calls of this shape ran when the run began
    std::optional<Interval> gain;
    bool promotes = false;  // the challenger is to be what they run
  };
  std::vector<Shape> shapes;
};

// `library`: what calls of each shape ran when the run began. The challenger is best only where it
// is shown to be faster than that: the interval of the ratio lies above 1, and the ratio above what
// two equal programs differ by. It is promoted shape by shape, by the same rule.
Decision decide(const RunMeta& meta, const Comparison& final, const std::string& challenger,
                const std::vector<std::string>& library, double margin);
Json to_json(const Decision& decision);

// Of a recorded run, from its samples; nothing where it has no final comparison, or is of a version
// that did not hold its winner against the library.
std::optional<Decision> decision_of(const RunMeta& meta, const std::vector<Record>& records,
                                    const std::optional<Comparison>& finalists,
                                    const std::optional<Comparison>& final,
                                    const std::optional<Noise>& noise, const Space& space);

std::vector<std::string> library_ids(const Space& space);

// The candidate of a record with this id; else it is the printed form of a typed one.
Candidate candidate_named(const std::vector<Record>& records, const std::string& id);
// What the library runs of each shape, as reports show it: beside a program it is no bar.
std::vector<std::string> shown_library(const RunMeta& meta, const Decision& decision);

}  // namespace attune::evolve
