// The mutation catalogue. Every operator has a name, "level.what", by which it is counted and by
// which the search learns what pays.
#pragma once

#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/propose/dice.hpp"

namespace attune::evolve {

struct Operator {
  std::string name;  // "algorithm.climb", "hardware.tile", "implementation.exp", "crossover"
  Level level = Level::hardware;
  std::string meaning;
  enum class Kind {
    climb,      // to the next family of the ladder; genes of the same name are kept
    descend,    // and back
    step,       // one gene of a group to a neighbouring value
    leap,       // every gene of a group to any value: linked genes change together
    crossover,  // each gene from one of two parents of one family and sketch
    polish,     // one gene of any group of the best, by one step
    immigrant   // any valid genome of any family that was reached
  } kind = Kind::step;
  std::string group;  // of step and leap
};

// All operators of a space, in a fixed order: climb, descend, a step and a leap for each group of
// genes that some family has, crossover, polish, immigrant.
std::vector<Operator> operators_of(const Space& space);

// Whether the operator can change this genome at all (its family has the group, there is a next
// family, ...).
bool applies(const Space& space, const Operator& op, const Genome& parent);

// A child, canonical and valid, or nothing when this draw led nowhere. `other` is the second parent
// of a crossover; an immigrant ignores both but for their families.
std::optional<Genome> apply(const Space& space, const Operator& op, const Genome& parent,
                            const Genome& other, Dice* dice);

Genome random_genome(const Space& space, int family, Dice* dice);  // valid and canonical

}  // namespace attune::evolve
