// What the search remembers: the best genome of every cell of every island, and which operators
// paid off.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/propose/mutate.hpp"
#include "evolve/propose/search.hpp"

namespace attune::evolve {

// One island: an elite a cell.
class Archive {
 public:
  struct Entry {
    int64_t n = -1;  // its proposal
    double fitness = 0;
  };

  // True when it entered an empty cell or raised one. Of equals the elder stays.
  bool insert(const Cell& cell, Entry entry);

  bool empty() const { return cells_.empty(); }
  const std::map<Cell, Entry>& cells() const { return cells_; }
  std::vector<Entry> ranked() const;               // fittest first, the elder of equals first
  Entry best() const { return ranked().front(); }  // not empty

 private:
  std::map<Cell, Entry> cells_;
};

// Which operator next: by how often each paid off of late, with a share for all of them so that
// none is forgotten.
class Credit {
 public:
  explicit Credit(std::vector<Operator> operators);

  const std::vector<Operator>& operators() const { return operators_; }
  const Operator& of_kind(Operator::Kind kind) const;
  const std::vector<OperatorCount>& counts() const { return counts_; }

  // Those that are new join at the end.
  void extend(const std::vector<Operator>& operators);

  // Of a result. `raised` is a cell of the archive, `improved` the best of the run.
  void charge(const std::string& name, bool ok, bool raised, bool improved);

  // One of `from`, indices of operators; not empty.
  size_t choose(const std::vector<size_t>& from, Dice* dice) const;

 private:
  struct Recent {
    double paid, used;  // old results fade
  };
  std::vector<Operator> operators_;
  std::vector<OperatorCount> counts_;
  std::vector<Recent> recent_;
};

}  // namespace attune::evolve
