#include "evolve/genome/genome.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "evolve/propose/dice.hpp"

namespace attune::evolve {
namespace {

// One gene to another value, and how far that is.
struct Step {
  size_t gene;
  int value, distance;
};

// Every change of one gene, nearest first; the dice settle the order of equals.
std::vector<Step> changes_of(const Family& family, const Genome& genome,
                             const std::vector<bool>& keep, Dice* dice) {
  std::vector<Step> changes;
  for (size_t g = 0; g < family.genes.size(); ++g) {
    if (g < keep.size() && keep[g]) continue;
    const Gene& gene = family.genes[g];
    const int at = nearest_index(gene, genome.genes[g]);
    for (int n = 0; n < int(gene.values.size()); ++n) {
      const int value = gene.values[size_t(n)];
      if (value != genome.genes[g])
        changes.push_back({g, value, gene.ordered ? std::abs(n - at) : 1});
    }
  }
  for (size_t n = changes.size(); n > 1; --n)
    std::swap(changes[n - 1], changes[size_t(dice->below(int64_t(n)))]);
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Step& a, const Step& b) { return a.distance < b.distance; });
  return changes;
}

}  // namespace

const char* level_name(Level level) {
  switch (level) {
    case Level::algorithm:
      return "algorithm";
    case Level::implementation:
      return "implementation";
    case Level::hardware:
      return "hardware";
  }
  return "unknown";
}

std::string Gene::label(int value) const {
  const auto at = std::find(values.begin(), values.end(), value);
  const size_t n = size_t(at - values.begin());
  return n < labels.size() ? labels[n] : std::to_string(value);
}

int Space::family_named(std::string_view name) const {
  const std::vector<Family>& all = families();
  for (size_t n = 0; n < all.size(); ++n)
    if (all[n].name == name) return int(n);
  return -1;
}

int nearest_index(const Gene& gene, int value) {
  int best = 0;
  const auto distance = [&](int n) {
    return std::llabs(int64_t{gene.values[size_t(n)]} - int64_t{value});
  };
  for (int n = 1; n < int(gene.values.size()); ++n)
    if (distance(n) < distance(best)) best = n;
  return best;
}

std::vector<Genome> choices_of(const Space& space, const std::vector<std::string>& library,
                               const Genome& otherwise, std::vector<Family>* families) {
  for (const std::string& text : library) {
    const std::optional<Genome> choice = space.parse(text);
    if (!choice || !space.invalid_reason(*choice).empty()) continue;
    for (size_t g = 0; g < choice->genes.size(); ++g) {
      std::vector<int>& values = (*families)[size_t(choice->family)].genes[g].values;
      const auto at = std::lower_bound(values.begin(), values.end(), choice->genes[g]);
      if (at == values.end() || *at != choice->genes[g]) values.insert(at, choice->genes[g]);
    }
  }
  std::vector<Genome> choices;
  for (const std::string& text : library) {
    Genome choice = space.parse(text).value_or(otherwise);
    if (!space.invalid_reason(choice).empty()) choice = space.canonical(choice);
    if (!repair(space, &choice, 0)) choice = otherwise;
    choices.push_back(choice);
  }
  if (choices.empty()) choices.push_back(otherwise);
  return choices;
}

bool repair(const Space& space, Genome* genome, uint64_t seed, const std::vector<bool>& keep) {
  if (space.invalid_reason(*genome).empty()) return true;
  if (genome->family < 0 || size_t(genome->family) >= space.families().size()) return false;
  const Family& family = space.families()[size_t(genome->family)];
  if (genome->genes.size() != family.genes.size()) return false;

  Dice dice(seed, 0);
  const std::vector<Step> changes = changes_of(family, *genome, keep, &dice);
  const auto works = [&](const Genome& trial) {
    if (!space.invalid_reason(trial).empty()) return false;
    *genome = trial;
    return true;
  };
  for (const Step& c : changes) {
    Genome trial = *genome;
    trial.genes[c.gene] = c.value;
    if (works(trial)) return true;
  }

  struct Pair {
    const Step *a, *b;
  };
  std::vector<Pair> pairs;
  for (size_t i = 0; i < changes.size(); ++i)
    for (size_t j = i + 1; j < changes.size(); ++j)
      if (changes[i].gene != changes[j].gene) pairs.push_back({&changes[i], &changes[j]});
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
    return x.a->distance + x.b->distance < y.a->distance + y.b->distance;
  });
  for (const Pair& p : pairs) {
    Genome trial = *genome;
    trial.genes[p.a->gene] = p.a->value;
    trial.genes[p.b->gene] = p.b->value;
    if (works(trial)) return true;
  }
  return false;
}

}  // namespace attune::evolve
