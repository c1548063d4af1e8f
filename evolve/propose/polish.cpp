#include "evolve/propose/polish.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace attune::evolve {

std::vector<Change> single_changes(const Space& space, const Genome& genome) {
  std::vector<Change> changes;
  const std::vector<Gene>& genes = space.families()[size_t(genome.family)].genes;
  for (size_t g = 0; g < genes.size(); ++g) {
    const std::vector<int>& values = genes[g].values;
    const std::ptrdiff_t at =
        std::find(values.begin(), values.end(), genome.genes[g]) - values.begin();
    for (std::ptrdiff_t i = 0; i < std::ptrdiff_t(values.size()); ++i)
      if (i != at && (!genes[g].ordered || std::abs(i - at) == 1))
        changes.push_back({g, values[size_t(i)]});
  }
  return changes;
}

bool change(const Space& space, const Genome& genome, const std::vector<Change>& changes,
            Genome* changed) {
  *changed = genome;
  std::vector<bool> keep(genome.genes.size());
  for (const Change& c : changes) {
    changed->genes[c.gene] = c.value;
    keep[c.gene] = true;
  }
  *changed = space.canonical(*changed);
  if (space.invalid_reason(*changed).empty()) return true;
  // A fixed seed: what is next to a genome does not depend on when it is asked.
  if (!repair(space, changed, 0, keep)) return false;
  *changed = space.canonical(*changed);
  return space.invalid_reason(*changed).empty();
}

std::vector<std::vector<Change>> pairs_of(const std::vector<Change>& singles,
                                          const std::vector<double>& scores) {
  struct Pair {
    double score;
    size_t first, second;
  };
  std::vector<Pair> pairs;
  for (size_t i = 0; i < singles.size(); ++i)
    for (size_t j = i + 1; j < singles.size(); ++j)
      if (singles[i].gene != singles[j].gene) pairs.push_back({scores[i] + scores[j], i, j});
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& x, const Pair& y) { return x.score > y.score; });
  std::vector<std::vector<Change>> changes;
  changes.reserve(pairs.size());
  for (const Pair& pair : pairs) changes.push_back({singles[pair.first], singles[pair.second]});
  return changes;
}

}  // namespace attune::evolve
