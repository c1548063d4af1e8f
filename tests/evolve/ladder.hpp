// A space whose speeds are known, and the driver of a strategy in it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "evolve/genome/genome.hpp"
#include "evolve/propose/mutate.hpp"
#include "evolve/propose/search.hpp"

namespace attune::evolve {

// A ladder of three families. How fast a genome is, is a formula: genes of the top family interact,
// so that the best value of one depends on others, and some combinations cannot run.
class Ladder : public Space {
 public:
  explicit Ladder(bool tiny = false) {
    const Gene unroll{"unroll", "unroll", "", Level::implementation, false, {1, 2, 4, 8}};
    const Gene tile{"tile", "tile", "", Level::hardware, false, {8, 16, 32, 64, 128, 256}};
    families_.push_back({"naive", "", {}});
    if (tiny) {
      families_.push_back({"tiled", "", {unroll}});
      return;
    }
    families_.push_back({"tiled", "", {unroll, tile}});
    families_.push_back(
        {"fused",
         "",
         {unroll,
          tile,
          {"block", "tile", "", Level::hardware, false, {16, 32, 48, 64, 96, 128, 192, 256}},
          {"stages", "pipeline", "", Level::hardware, false, {1, 2, 3, 4, 5}},
          {"mode", "mode", "", Level::algorithm, true, {0, 1, 2}, false},
          {"vec", "vec", "", Level::implementation, false, {1, 2, 4, 8}},
          {"swizzle", "pipeline", "", Level::implementation, false, {0, 1, 2, 3}, false}}});
  }

  const std::vector<Family>& families() const override { return families_; }
  const std::vector<Axis>& axes() const override { return axes_; }

  std::string invalid_reason(const Genome& g) const override {
    if (g.family < 2) return "";
    if (g.genes[1] * g.genes[2] * g.genes[3] > 64 * 128 * 3) return "too much memory";
    if (g.genes[4] == 2 && g.genes[3] < 2) return "mode 2 needs two stages";
    if (g.genes[0] == 8 && g.genes[5] == 8) return "too many registers";
    return "";
  }

  Genome canonical(Genome g) const override {
    if (g.family == 2 && g.genes[3] == 1) g.genes[6] = 0;  // nothing to swizzle
    const std::vector<Gene>& genes = families_[size_t(g.family)].genes;
    for (size_t i = 0; i < genes.size(); ++i)
      if (std::count(genes[i].values.begin(), genes[i].values.end(), g.genes[i]) == 0)
        g.genes[i] = genes[i].values[0];
    return g;
  }

  Cell cell(const Genome& g) const override {
    if (g.family < 2) return {{g.family, 0, 0}};
    return {{2 + g.genes[4], std::min(3, g.genes[1] * g.genes[2] / 2048), g.genes[3] / 2}};
  }

  std::string print(const Genome& g) const override {
    std::string text = families_[size_t(g.family)].name;
    for (int value : g.genes) (text += ".") += std::to_string(value);
    return text;
  }
  std::optional<Genome> parse(std::string_view) const override { return {}; }
  Genome library_default() const override { return {2, {2, 16, 64, 2, 0, 1, 0}}; }

  double fitness(const Genome& g) const {
    const auto off = [](double value, double best) { return std::abs(std::log2(value / best)); };
    if (g.family == 0) return 0;
    if (g.genes.size() == 1) return 1 - 0.1 * off(g.genes[0], 4);  // the tiny one
    if (g.family == 1) return 1.5 - 0.1 * off(g.genes[0], 4) - 0.1 * off(g.genes[1], 32);
    const double unroll = g.genes[0], tile = g.genes[1], block = g.genes[2], stages = g.genes[3],
                 vec = g.genes[5];
    const int mode = g.genes[4];
    // The best tile, pipeline and vector width depend on the mode and on each other.
    double f = 3.2 + 0.15 * mode;
    f -= 0.20 * off(tile, mode == 2 ? 128 : 32);
    f -= 0.15 * off(tile * block, 8192);
    f -= 0.12 * std::abs(stages - (mode == 2 ? 3 : 2));
    f -= 0.10 * off(vec, mode == 1 ? 8 : 4);
    f -= 0.08 * off(unroll * vec, 16);
    f -= g.genes[6] == (mode == 2 ? 3 : 1) ? 0 : 0.1;
    return f;
  }

  double fittest() const {
    double best = 0;
    Genome g{2, std::vector<int>(7)};
    each(0, &g, [&] {
      if (invalid_reason(g).empty()) best = std::max(best, fitness(g));
    });
    return best;
  }

 private:
  template <class F>
  void each(size_t gene, Genome* g, const F& f) const {
    if (gene == g->genes.size()) return f();
    for (int value : families_[2].genes[gene].values) {
      g->genes[gene] = value;
      each(gene + 1, g, f);
    }
  }

  std::vector<Family> families_;
  std::vector<Axis> axes_{{"sketch", {}}, {"memory", {}}, {"stages", {}}};
};

// Keeps to n - W: proposal n comes after exactly the results up to n - W.
struct Climb {
  const Ladder& space;
  Strategy& strategy;
  int window = 1;
  int64_t budget = 0;  // progress is told when there is one
  bool (*fails)(const Genome&) = [](const Genome&) { return false; };

  std::vector<Proposal> proposals{};
  std::vector<Outcome> outcomes{};
  double best = -1;
  size_t told = 0;

  Outcome judge(const Genome& genome) {
    Outcome outcome;
    outcome.ok = !fails(genome);
    outcome.fitness = outcome.ok ? space.fitness(genome) : 0;
    outcome.improved = outcome.ok && outcome.fitness > best + 0.01;
    if (outcome.improved) best = outcome.fitness;
    return outcome;
  }

  // False when the strategy has nothing left.
  bool run(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      while (told + size_t(window) <= proposals.size()) tell_next();
      if (budget > 0) strategy.progress(double(proposals.size()) / double(budget));
      const std::optional<Proposal> p = strategy.propose();
      if (!p) return false;
      EXPECT_EQ(p->n, int64_t(proposals.size()));
      proposals.push_back(*p);
      outcomes.push_back(judge(p->genome));
    }
    return true;
  }
  void tell_next() {
    strategy.tell(proposals[told], outcomes[told]);
    ++told;
  }
};

inline SearchOptions seeded(uint64_t seed) {
  SearchOptions options;
  options.seed = seed;
  return options;
}

inline std::string name_of(const Space& space, Operator::Kind kind) {
  for (const Operator& op : operators_of(space))
    if (op.kind == kind) return op.name;
  ADD_FAILURE();
  return "";
}

}  // namespace attune::evolve
