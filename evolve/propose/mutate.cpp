#include "evolve/propose/mutate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace attune::evolve {
namespace {

constexpr int kTries = 16;  // draws of a leap, a crossover, an immigrant before it led nowhere

using Kind = Operator::Kind;

int any_value(const Gene& gene, Dice* dice) {
  constexpr double kRare = 1.0 / 8;
  return gene.rare && !dice->chance(kRare) ? gene.values[0] : dice->pick(gene.values);
}

const Family& family_in(const Space& space, const Genome& genome) {
  return space.families()[size_t(genome.family)];
}

std::vector<size_t> shuffled(std::vector<size_t> order, Dice* dice) {
  for (size_t n = order.size(); n > 1; --n)
    std::swap(order[n - 1], order[size_t(dice->below(int64_t(n)))]);
  return order;
}

// The genes of a group that can change at all; of every group when it has no name.
std::vector<size_t> genes_in(const Family& family, const std::string& group) {
  std::vector<size_t> genes;
  for (size_t g = 0; g < family.genes.size(); ++g)
    if ((group.empty() || family.genes[g].group == group) && family.genes[g].values.size() > 1)
      genes.push_back(g);
  return genes;
}

// Repaired around the genes that the operator has set, and canonical; nothing when it cannot be, or
// is the parent again.
std::optional<Genome> settle(const Space& space, const Genome& parent, Genome child,
                             const std::vector<bool>& keep, Dice* dice) {
  if (!repair(space, &child, dice->bits(), keep)) return std::nullopt;
  child = space.canonical(std::move(child));
  if (child == parent || child == space.canonical(parent)) return std::nullopt;
  return child;
}

// A family's genome that takes over what the parent has under the same names. The rest is neither
// small nor large: the library's own choice would be an answer that the search did not find.
Genome entry(const Space& space, int family, const Genome* parent) {
  const std::vector<Gene>& genes = space.families()[size_t(family)].genes;
  Genome genome{family, {}};
  for (size_t g = 0; g < genes.size(); ++g) {
    int value = genes[g].values[genes[g].ordered ? (genes[g].values.size() - 1) / 2 : 0];
    if (parent != nullptr) {
      const std::vector<Gene>& theirs = family_in(space, *parent).genes;
      for (size_t n = 0; n < theirs.size(); ++n)
        if (theirs[n].name == genes[g].name) value = parent->genes[n];
    }
    genome.genes.push_back(genes[g].values[size_t(nearest_index(genes[g], value))]);
  }
  return genome;
}

// To the nearest value on one side that makes another kernel, else on the other side.
std::optional<Genome> step_gene(const Space& space, const Genome& parent, size_t g, Dice* dice) {
  const Gene& gene = family_in(space, parent).genes[g];
  std::vector<bool> keep(parent.genes.size());
  keep[g] = true;
  const auto with = [&](size_t n) {
    Genome child = parent;
    child.genes[g] = gene.values[n];
    return settle(space, parent, std::move(child), keep, dice);
  };
  const size_t at = size_t(nearest_index(gene, parent.genes[g]));
  std::vector<size_t> up, down;
  for (size_t n = at + 1; n < gene.values.size(); ++n) up.push_back(n);
  for (size_t n = at; n-- > 0;) down.push_back(n);
  if (dice->chance(0.5)) std::swap(up, down);
  up.insert(up.end(), down.begin(), down.end());
  if (!gene.ordered) up = shuffled(up, dice);
  for (size_t n : up)
    if (std::optional<Genome> child = with(n)) return child;
  return std::nullopt;
}

std::optional<Genome> step(const Space& space, const Genome& parent, const std::string& group,
                           Dice* dice) {
  for (size_t g : shuffled(genes_in(family_in(space, parent), group), dice))
    if (std::optional<Genome> child = step_gene(space, parent, g, dice)) return child;
  return std::nullopt;
}

std::optional<Genome> leap(const Space& space, const Genome& parent, const std::string& group,
                           Dice* dice) {
  const Family& family = family_in(space, parent);
  std::vector<bool> keep(parent.genes.size());
  for (size_t g : genes_in(family, group)) keep[g] = true;
  for (int n = 0; n < kTries; ++n) {
    Genome child = parent;
    for (size_t g : genes_in(family, group)) child.genes[g] = any_value(family.genes[g], dice);
    if (child == parent) continue;
    if (std::optional<Genome> settled = settle(space, parent, std::move(child), keep, dice))
      return settled;
  }
  return std::nullopt;
}

std::optional<Genome> cross(const Space& space, const Genome& parent, const Genome& other,
                            Dice* dice) {
  if (other.family != parent.family) return std::nullopt;
  const Family& family = family_in(space, parent);
  for (size_t g = 0; g < family.genes.size(); ++g)
    if (family.genes[g].sketch && parent.genes[g] != other.genes[g]) return std::nullopt;
  for (int n = 0; n < kTries; ++n) {
    Genome child = parent;
    for (size_t g = 0; g < child.genes.size(); ++g)
      if (dice->chance(0.5)) child.genes[g] = other.genes[g];
    if (child == parent || child == other) continue;
    std::optional<Genome> settled = settle(space, parent, std::move(child), {}, dice);
    if (settled && *settled != other) return settled;
  }
  return std::nullopt;
}

// A family without genes has one genome, which the ladder has passed: it brings nothing new.
std::optional<Genome> immigrate(const Space& space, const Genome& parent, const Genome& other,
                                Dice* dice) {
  std::vector<int> families;
  for (int f = 0; f <= std::max(parent.family, other.family); ++f)
    if (!space.families()[size_t(f)].genes.empty()) families.push_back(f);
  for (int n = 0; n < kTries && !families.empty(); ++n) {
    const Genome child = random_genome(space, dice->pick(families), dice);
    if (child != parent && child != other) return child;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Operator> operators_of(const Space& space) {
  std::vector<Operator> operators = {
      {"algorithm.climb", Level::algorithm, "to the next rung of the ladder", Kind::climb, ""},
      {"algorithm.descend", Level::algorithm, "back to the rung below", Kind::descend, ""},
  };
  std::vector<std::string> groups;
  for (const Family& family : space.families())
    for (const Gene& gene : family.genes) {
      if (std::count(groups.begin(), groups.end(), gene.group) > 0) continue;
      groups.push_back(gene.group);
      const std::string name = fmt::format("{}.{}", level_name(gene.level), gene.group);
      operators.push_back({name, gene.level,
                           fmt::format("one gene of the group {} by one step", gene.group),
                           Kind::step, gene.group});
      operators.push_back({name + ".leap", gene.level,
                           fmt::format("all genes of the group {} to any values", gene.group),
                           Kind::leap, gene.group});
    }
  operators.push_back({"crossover", Level::implementation,
                       "each gene from one of two parents of one sketch", Kind::crossover, ""});
  operators.push_back(
      {"polish", Level::hardware, "any one gene of the best by one step", Kind::polish, ""});
  operators.push_back({"immigrant", Level::algorithm, "a random genome of a rung that was reached",
                       Kind::immigrant, ""});
  return operators;
}

bool applies(const Space& space, const Operator& op, const Genome& parent) {
  const Family& family = family_in(space, parent);
  switch (op.kind) {
    case Kind::climb:
      return size_t(parent.family) + 1 < space.families().size();
    case Kind::descend:
      return parent.family > 0;
    case Kind::step:
    case Kind::leap:
      return !genes_in(family, op.group).empty();
    case Kind::crossover:
      return genes_in(family, "").size() > 1;
    case Kind::polish:
      return !genes_in(family, "").empty();
    case Kind::immigrant:
      return std::any_of(space.families().begin(), space.families().begin() + parent.family + 1,
                         [](const Family& f) { return !f.genes.empty(); });
  }
  return false;
}

std::optional<Genome> apply(const Space& space, const Operator& op, const Genome& parent,
                            const Genome& other, Dice* dice) {
  if (op.kind == Kind::immigrant) return immigrate(space, parent, other, dice);
  if (!applies(space, op, parent)) return std::nullopt;
  switch (op.kind) {
    case Kind::climb:
      return settle(space, parent, entry(space, parent.family + 1, &parent), {}, dice);
    case Kind::descend:
      return settle(space, parent, entry(space, parent.family - 1, &parent), {}, dice);
    case Kind::step:
      return step(space, parent, op.group, dice);
    case Kind::leap:
      return leap(space, parent, op.group, dice);
    case Kind::crossover:
      return cross(space, parent, other, dice);
    case Kind::polish:
      return step(space, parent, "", dice);
    case Kind::immigrant:
      break;
  }
  return std::nullopt;
}

Genome random_genome(const Space& space, int family, Dice* dice) {
  const std::vector<Gene>& genes = space.families()[size_t(family)].genes;
  for (int n = 0; n < kTries; ++n) {
    Genome genome{family, {}};
    for (const Gene& gene : genes) genome.genes.push_back(any_value(gene, dice));
    if (repair(space, &genome, dice->bits())) return space.canonical(std::move(genome));
  }
  // So few genomes are valid that chance finds none: the one that a climb would reach, changed
  // where it can be.
  Genome genome = entry(space, family, nullptr);
  repair(space, &genome, dice->bits());
  genome = space.canonical(std::move(genome));
  for (size_t n = 0; n < genes.size(); ++n)
    if (std::optional<Genome> next = step(space, genome, "", dice)) genome = *next;
  return genome;
}

}  // namespace attune::evolve
