// What all strategies share.
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evolve/propose/dice.hpp"
#include "evolve/propose/mutate.hpp"
#include "evolve/propose/search.hpp"

namespace attune::evolve {

// The first proposal is the start, the second what the library runs, numbers have no gaps, no
// genome comes twice, and what number n draws depends on the seed and n.
class Numbered : public Strategy {
 public:
  Numbered(const Space& space, SearchOptions options)
      : space_(space), options_(std::move(options)) {
    // A family may have no genome that these problems can run: it is not asked for one again.
    Dice dice(options_.seed, ~uint64_t{0});
    for (int family = 0; family < int(space.families().size()); ++family) {
      bool found = false;
      for (int draw = 0; draw < 3 && !found; ++draw)
        found = space.invalid_reason(random_genome(space, family, &dice)).empty();
      if (found) families_.push_back(family);
    }
  }

  std::optional<Proposal> offer(const Genome& genome, const std::string& op, int64_t parent) final {
    keep_up();
    if (next_n() == 0 || parent >= next_n()) return {};
    const int island = parent < 0 ? 0 : known_[size_t(parent)].island;
    std::optional<Proposal> proposal = fresh(genome, op, parent, -1, island);
    if (proposal) note(*proposal);
    return proposal;
  }

  std::optional<Proposal> propose() final {
    keep_up();
    Dice dice(options_.seed, uint64_t(next_n()));
    std::optional<Proposal> proposal;
    if (next_n() == 0) proposal = start();
    if (next_n() == 1 && options_.library) proposal = fresh(*options_.library, kLibraryOp);
    if (!proposal) proposal = next(&dice);
    if (proposal) note(*proposal);
    return proposal;
  }

  void tell(const Proposal& proposal, const Outcome& outcome) final {
    keep_up();
    // A result of a run that went before: as if it had been proposed here.
    if (proposal.n == next_n()) note(proposal);
    if (proposal.n < 0 || proposal.n >= next_n()) return;
    Known& known = known_[size_t(proposal.n)];
    if (known.told) return;
    known.told = true;
    known.ok = outcome.ok && std::isfinite(outcome.fitness);
    known.fitness = known.ok ? outcome.fitness : 0;
    learn(proposal.n, known, known.ok && outcome.improved);
  }

  void progress(double fraction) final { progress_ = fraction; }

 protected:
  struct Known {
    Genome genome;
    std::string op;
    int island = 0;
    bool told = false, ok = false;
    double fitness = 0;

    bool failed() const { return told && !ok; }
  };

  virtual std::optional<Proposal> next(Dice* dice) = 0;
  virtual void noted(const Known&) {}
  virtual void grew() {}  // the space did; genomes have their new genes
  virtual void learn(int64_t /*n*/, const Known&, bool /*improved*/) {}

  int64_t next_n() const { return int64_t(known_.size()); }

  // Nothing when it cannot run or was proposed before.
  std::optional<Proposal> fresh(const Genome& genome, const std::string& op, int64_t parent = -1,
                                int64_t other = -1, int island = 0) const {
    if (!space_.invalid_reason(genome).empty()) return {};
    std::string id = space_.print(genome);
    if (ids_.contains(id)) return {};
    return Proposal{next_n(), genome, std::move(id), op, parent, other, island};
  }

  const Space& space_;
  const SearchOptions options_;
  double progress_ = 0;
  std::vector<int> families_;           // that have valid genomes, in the ladder's order
  std::vector<Known> known_;            // by n
  std::map<std::string, int64_t> ids_;  // of all proposals

 private:
  void keep_up() {
    if (growth_ == space_.growth()) return;
    growth_ = space_.growth();
    for (Known& known : known_) known.genome = space_.grown(std::move(known.genome));
    grew();
  }

  std::optional<Proposal> start() const {
    Genome genome = space_.canonical(options_.start ? *options_.start : space_.start());
    // Where it cannot be repaired it is proposed all the same: the verdict says why it cannot run.
    if (!space_.invalid_reason(genome).empty())
      if (Genome other = genome; repair(space_, &other, options_.seed)) genome = other;
    return Proposal{0, genome, space_.print(genome), "start", -1, -1, 0};
  }

  void note(const Proposal& p) {
    ids_.emplace(p.id, p.n);
    known_.push_back({p.genome, p.op, p.island});
    noted(known_.back());
  }

  int64_t growth_ = 0;
};

}  // namespace attune::evolve
