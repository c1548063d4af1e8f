// The end of a run: everything next to the best, systematically.
#pragma once

#include <vector>

#include "evolve/genome/genome.hpp"

namespace attune::evolve {

// One gene of a genome to another value: the next and the one before where values are ordered, any
// where they are not.
struct Change {
  size_t gene = 0;
  int value = 0;

  bool operator==(const Change&) const = default;
};
std::vector<Change> single_changes(const Space& space, const Genome& genome);

// The genome with these changes: canonical, and repaired where they broke it. False when it cannot
// be; the genome itself may come back.
bool change(const Space& space, const Genome& genome, const std::vector<Change>& changes,
            Genome* changed);

// Pairs of changes of two different genes, first those whose single scores sum highest.
std::vector<std::vector<Change>> pairs_of(const std::vector<Change>& singles,
                                          const std::vector<double>& scores);

}  // namespace attune::evolve
