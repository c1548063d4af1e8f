#include "evolve/propose/search.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "evolve/propose/archive.hpp"
#include "evolve/propose/numbered.hpp"
#include "evolve/propose/polish.hpp"

namespace attune::evolve {
namespace {

constexpr int kDraws = 64;          // of operators, before random genomes are tried
constexpr int kRandomDraws = 1000;  // before the space is thought exhausted

// Any genome of any family.
class RandomSearch : public Numbered {
 public:
  using Numbered::Numbered;

 private:
  std::optional<Proposal> next(Dice* dice) override {
    if (families_.empty()) return {};
    for (int draw = 0; draw < kRandomDraws; ++draw)
      if (auto p = fresh(random_genome(space_, dice->pick(families_), dice), "random")) return p;
    return {};
  }
};

// What a careful person without a search would do: take the family that the library itself would
// run, its default first, then N random genomes of that family, and keep the best of them. Each is
// drawn independently of all results.
class BestOfN : public Numbered {
 public:
  using Numbered::Numbered;

 private:
  std::optional<Proposal> next(Dice* dice) override {
    const Genome standard = space_.canonical(space_.library_default());
    if (auto p = fresh(standard, "default")) return p;
    for (int draw = 0; draw < kRandomDraws; ++draw)
      if (auto p = fresh(random_genome(space_, standard.family, dice), "random")) return p;
    return {};
  }
};

// Islands of MAP-Elites. A run opens with the start and climbs the ladder from there, each rung
// from the one below without waiting for its result; of a program it tries each text of its
// catalogue alone; then a few random genomes settle every island; then operators chosen by credit
// vary the elites. Near the end of the budget everything around the best is tried, one gene at a
// time and then two.
class Evolve : public Numbered {
 public:
  Evolve(const Space& space, const SearchOptions& options)
      : Numbered(space, options),
        credit_(operators_of(space)),
        islands_(size_t(std::max(1, options.islands))),
        climbs_(space.families().size(), 0),
        immigrants_due_(kSettlers * int(islands_.size())) {}

  const Credit& credit() const { return credit_; }
  const std::vector<Archive>& islands() const { return islands_; }

 private:
  static constexpr int kSettlers = 2;  // random genomes an island begins with
  static constexpr int kClimbs = 4;    // tries of a rung before the one above it is tried

  using Kind = Operator::Kind;

  void grew() override { credit_.extend(operators_of(space_)); }

  std::optional<Proposal> next(Dice* dice) override {
    const int island = int(next_n() % int64_t(islands_.size()));
    if (auto p = climb(island, dice)) return p;
    if (auto p = from_catalogue(island)) return p;
    if (progress_ >= options_.polish_from)
      if (auto p = polish()) return p;
    if (immigrants_due_ > 0 || islands_[size_t(island)].empty())
      if (auto p = immigrant(island, kDraws, dice)) return p;
    for (int draw = 0; draw < kDraws; ++draw)
      if (auto p = vary(island, dice)) return p;
    return immigrant(island, kRandomDraws, dice);
  }

  // The highest family that has a genome which did not fail, or may still not; -1: none. What the
  // library runs is a gift: the ladder is climbed all the same.
  int reached() const {
    int family = -1;
    for (const Known& known : known_)
      if (!known.failed() && known.op != kLibraryOp) family = std::max(family, known.genome.family);
    return family;
  }

  // The next rung; where it fails again and again, or has nothing valid, the one after it.
  std::optional<Proposal> climb(int island, Dice* dice) const {
    const int from = reached();
    if (from < 0) return {};
    int64_t parent = next_n() - 1;
    while (known_[size_t(parent)].failed() || known_[size_t(parent)].op == kLibraryOp ||
           known_[size_t(parent)].genome.family != from)
      --parent;
    const Genome& genome = known_[size_t(parent)].genome;
    const Operator& op = credit_.of_kind(Kind::climb);
    for (int to : families_) {
      if (to <= from || climbs_[size_t(to)] >= kClimbs) continue;
      if (to == from + 1)
        if (const auto child = apply(space_, op, genome, genome, dice))
          if (auto p = fresh(*child, op.name, parent, -1, island)) return p;
      for (int draw = 0; draw < kDraws; ++draw)
        if (auto p = fresh(random_genome(space_, to, dice), op.name, parent, -1, island)) return p;
    }
    return {};
  }

  // The start with one text of another program: what each is worth by itself.
  std::optional<Proposal> from_catalogue(int island) const {
    const Genome& start = known_[0].genome;
    const std::vector<Gene>& genes = space_.families()[size_t(start.family)].genes;
    for (size_t g = 0; g < genes.size(); ++g)
      for (size_t v = 0; v < genes[g].values.size() && genes[g].catalogue; ++v) {
        Genome genome = start;
        genome.genes[g] = genes[g].values[v];
        if (auto p =
                fresh(space_.canonical(genome), credit_.of_kind(Kind::polish).name, 0, -1, island))
          return p;
      }
    return {};
  }

  // A random genome: mostly of the best's family, else of any that was reached.
  std::optional<Proposal> immigrant(int island, int draws, Dice* dice) {
    const int top = reached();
    const int favourite = best_ >= 0 ? known_[size_t(best_)].genome.family : top;
    std::vector<int> from;
    for (int family : families_)
      if (top < 0 || family <= top) from.push_back(family);
    if (from.empty()) return {};
    const std::string& name = credit_.of_kind(Kind::immigrant).name;
    for (int draw = 0; draw < draws; ++draw) {
      int family = dice->pick(from);
      if (favourite >= 0 && dice->chance(0.75)) family = favourite;
      if (auto p = fresh(random_genome(space_, family, dice), name, -1, -1, island)) return p;
    }
    return {};
  }

  // Fitter elites are drawn more often; every cell has its chance.
  static int64_t pick_elite(const std::vector<int64_t>& ranked, Dice* dice) {
    // To the power of 2.5, by operations that round the same everywhere.
    const double u = dice->uniform(), at = u * u * std::sqrt(u) * double(ranked.size());
    return ranked[std::min(size_t(at), ranked.size() - 1)];
  }

  std::optional<Proposal> vary(int island, Dice* dice) {
    std::vector<int64_t> ranked;
    for (const Archive::Entry& entry : islands_[size_t(island)].ranked()) ranked.push_back(entry.n);
    if (ranked.empty()) return {};
    int64_t parent = pick_elite(ranked, dice);
    std::vector<int64_t> partners;
    for (int64_t n : ranked)
      if (n != parent && same_sketch(n, parent)) partners.push_back(n);

    std::vector<size_t> usable;
    for (size_t i = 0; i < credit_.operators().size(); ++i) {
      const Operator& op = credit_.operators()[i];
      if (op.kind == Kind::immigrant || (op.kind == Kind::crossover && partners.empty())) continue;
      const int64_t of = op.kind == Kind::polish ? ranked[0] : parent;
      if (applies(space_, op, known_[size_t(of)].genome)) usable.push_back(i);
    }
    if (usable.empty()) return {};
    const Operator& op = credit_.operators()[credit_.choose(usable, dice)];
    if (op.kind == Kind::polish) parent = ranked[0];
    const int64_t other = op.kind == Kind::crossover ? pick_elite(partners, dice) : -1;
    const Genome& first = known_[size_t(parent)].genome;
    const Genome& second = other < 0 ? first : known_[size_t(other)].genome;
    const std::optional<Genome> child = apply(space_, op, first, second, dice);
    if (!child) return {};
    return fresh(*child, op.name, parent, other, island);
  }

  bool same_sketch(int64_t x, int64_t y) const {
    const Genome &a = known_[size_t(x)].genome, &b = known_[size_t(y)].genome;
    if (a.family != b.family) return false;
    const std::vector<Gene>& genes = space_.families()[size_t(a.family)].genes;
    for (size_t g = 0; g < genes.size(); ++g)
      if (genes[g].sketch && a.genes[g] != b.genes[g]) return false;
    return true;
  }

  // All single changes of the fittest, then of the last that was better beyond noise, where that is
  // another; then pairs of changes of the fittest.
  std::optional<Proposal> polish() const {
    if (best_ < 0) return {};
    for (int64_t n : {best_, champion_})
      for (const Change& single : single_changes(space_, known_[size_t(n)].genome))
        if (auto p = changed(n, {single})) return p;

    const std::vector<Change> singles = single_changes(space_, known_[size_t(best_)].genome);
    std::vector<double> scores;
    scores.reserve(singles.size());
    for (const Change& single : singles) scores.push_back(score(single));
    for (const std::vector<Change>& pair : pairs_of(singles, scores))
      if (auto p = changed(best_, pair)) return p;
    return {};
  }

  std::optional<Proposal> changed(int64_t n, const std::vector<Change>& changes) const {
    Genome genome;
    const Known& known = known_[size_t(n)];
    if (!change(space_, known.genome, changes, &genome)) return {};
    return fresh(genome, credit_.of_kind(Kind::polish).name, n, -1, known.island);
  }

  // What a single change of the fittest did to it; one whose result is not in yet did nothing.
  double score(const Change& single) const {
    constexpr double kFailed = -1e3;
    Genome genome;
    const Known& best = known_[size_t(best_)];
    if (!change(space_, best.genome, {single}, &genome)) return kFailed;
    const auto at = ids_.find(space_.print(genome));
    if (at == ids_.end() || !known_[size_t(at->second)].told) return 0;
    const Known& known = known_[size_t(at->second)];
    return known.ok ? known.fitness - best.fitness : kFailed;
  }

  void noted(const Known& known) override {
    if (known.op == credit_.of_kind(Kind::immigrant).name)
      immigrants_due_ = std::max(0, immigrants_due_ - 1);
    if (known.op == credit_.of_kind(Kind::climb).name) climbs_[size_t(known.genome.family)] += 1;
  }

  void learn(int64_t n, const Known& known, bool improved) override {
    bool raised = false;
    if (known.ok) {
      // The first of a family founds it on every island.
      const bool founder = founded_.insert(known.genome.family).second;
      const Cell cell = space_.cell(known.genome);
      for (size_t i = 0; i < islands_.size(); ++i)
        if (founder || int(i) == known.island)
          raised |= islands_[i].insert(cell, {n, known.fitness});
      if (best_ < 0 || known.fitness > known_[size_t(best_)].fitness) best_ = n;
      if (champion_ < 0 || improved) champion_ = n;
    }
    credit_.charge(known.op, known.ok, raised, improved);

    since_improved_ = improved ? 0 : since_improved_ + 1;
    if (options_.stagnation > 0 && since_improved_ > 0 &&
        since_improved_ % options_.stagnation == 0)
      immigrants_due_ = int(islands_.size());
    told_ += 1;
    if (options_.migrate_every > 0 && told_ % options_.migrate_every == 0) migrate();
  }

  // The best of every island goes to the next one.
  void migrate() {
    std::vector<Archive::Entry> leaving;
    for (const Archive& island : islands_)
      leaving.push_back(island.empty() ? Archive::Entry{} : island.best());
    for (size_t i = 0; i < islands_.size(); ++i)
      if (leaving[i].n >= 0)
        islands_[(i + 1) % islands_.size()].insert(space_.cell(known_[size_t(leaving[i].n)].genome),
                                                   leaving[i]);
  }

  Credit credit_;
  std::vector<Archive> islands_;
  std::set<int> founded_;    // that have a genome which is right
  std::vector<int> climbs_;  // proposed, by the family they went to
  int immigrants_due_;
  int64_t best_ = -1, champion_ = -1, told_ = 0, since_improved_ = 0;
};

}  // namespace

std::vector<std::string> strategy_names() { return {"evolve", "random", "best-of-n"}; }

std::unique_ptr<Strategy> make_strategy(const std::string& name, const Space& space,
                                        const SearchOptions& options) {
  if (name == "evolve") return std::make_unique<Evolve>(space, options);
  if (name == "random") return std::make_unique<RandomSearch>(space, options);
  if (name == "best-of-n") return std::make_unique<BestOfN>(space, options);
  return nullptr;
}

std::vector<OperatorCount> operator_counts(const Strategy& strategy) {
  const auto* evolve = dynamic_cast<const Evolve*>(&strategy);
  return evolve ? evolve->credit().counts() : std::vector<OperatorCount>{};
}

std::vector<Elite> elites(const Strategy& strategy) {
  std::vector<Elite> all;
  if (const auto* evolve = dynamic_cast<const Evolve*>(&strategy))
    for (size_t i = 0; i < evolve->islands().size(); ++i)
      for (const auto& [cell, entry] : evolve->islands()[i].cells())
        all.push_back({cell, int(i), entry.n, entry.fitness});
  return all;
}

}  // namespace attune::evolve
