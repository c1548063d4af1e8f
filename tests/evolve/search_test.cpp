#include "evolve/propose/search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "evolve/propose/polish.hpp"
#include "tests/evolve/ladder.hpp"

namespace attune::evolve {
namespace {

std::vector<Proposal> proposals_of(const std::string& name, uint64_t seed, int window, int count) {
  const Ladder space;
  const auto strategy = make_strategy(name, space, seeded(seed));
  Climb driver{space, *strategy, window, count};
  EXPECT_TRUE(driver.run(count));
  return driver.proposals;
}

double best_of(const std::string& name, uint64_t seed, int count) {
  const Ladder space;
  const auto strategy = make_strategy(name, space, seeded(seed));
  Climb driver{space, *strategy, 1, count};
  driver.run(count);
  return driver.best;
}

int64_t tried(const Strategy& strategy, const std::string& name) {
  for (const OperatorCount& count : operator_counts(strategy))
    if (count.name == name) return count.tried;
  ADD_FAILURE() << "no operator " << name;
  return 0;
}

TEST(Search, Names) {
  const Ladder space;
  for (const std::string& name : strategy_names())
    EXPECT_NE(make_strategy(name, space, {}), nullptr) << name;
  EXPECT_EQ(make_strategy("luck", space, {}), nullptr);
}

TEST(Search, SameSeedSameProposals) {
  for (const std::string& name : strategy_names())
    for (int window : {1, 4}) {
      const auto once = proposals_of(name, 5, window, 150);
      EXPECT_EQ(once, proposals_of(name, 5, window, 150)) << name << window;
      EXPECT_NE(once, proposals_of(name, 6, window, 150)) << name << window;
    }
}

TEST(Search, FirstIsTheStart) {
  const Ladder space;
  for (const std::string& name : strategy_names()) {
    const auto first = make_strategy(name, space, {})->propose();
    ASSERT_TRUE(first) << name;
    EXPECT_EQ(first->op, "start");
    EXPECT_EQ(first->genome, space.start());
    SearchOptions options;
    options.start = space.library_default();
    EXPECT_EQ(make_strategy(name, space, options)->propose()->genome, space.library_default());
  }
}

TEST(Search, ProposalsAreValidCanonicalAndNew) {
  const Ladder space;
  for (const std::string& name : strategy_names())
    for (int window : {1, 4}) {
      std::set<std::string> ids;
      for (const Proposal& p : proposals_of(name, 3, window, 400)) {
        EXPECT_EQ(space.invalid_reason(p.genome), "") << p.id;
        EXPECT_EQ(space.canonical(p.genome), p.genome) << p.id;
        EXPECT_EQ(space.print(p.genome), p.id);
        EXPECT_TRUE(ids.insert(p.id).second) << p.id << " again";
        EXPECT_LT(p.parent, p.n);
      }
    }
}

// With W = 4 proposal 56 follows from results 0 to 52: whatever became of 53 to 55.
TEST(Search, ReadsOnlyWhatItWasTold) {
  const Ladder space;
  const auto a = make_strategy("evolve", space, seeded(9)),
             b = make_strategy("evolve", space, seeded(9));
  Climb one{space, *a, 4}, other{space, *b, 4};
  one.run(57);
  other.run(56);
  for (size_t n = 53; n < 56; ++n) other.outcomes[n] = {false, 0, false};
  other.run(1);
  EXPECT_EQ(other.told, 53u);
  EXPECT_EQ(other.proposals, one.proposals);
  // Once they are told, they matter.
  one.run(40);
  other.run(40);
  EXPECT_NE(other.proposals, one.proposals);
}

// A run that broke off after k committed results goes on as the unbroken one.
TEST(Search, ResumesWhereItWas) {
  const Ladder space;
  for (int window : {1, 4})
    for (size_t k : {size_t{1}, size_t{7}, size_t{90}}) {
      const auto whole = make_strategy("evolve", space, seeded(4));
      Climb unbroken{space, *whole, window, 160};
      unbroken.run(150);
      const auto again = make_strategy("evolve", space, seeded(4));
      Climb resumed{space, *again, window, 160};
      for (size_t n = 0; n < k; ++n) {
        ASSERT_TRUE(resumed.run(1));
        resumed.outcomes.back() = unbroken.outcomes[n];
      }
      resumed.run(150 - int64_t(k));
      EXPECT_EQ(resumed.proposals, unbroken.proposals) << window << " " << k;
    }
}

// With W = 1 it is enough to tell the results, without proposing again.
TEST(Search, ToldResultsAreEnough) {
  const Ladder space;
  const auto whole = make_strategy("evolve", space, seeded(4));
  Climb unbroken{space, *whole};
  unbroken.run(120);
  const auto again = make_strategy("evolve", space, seeded(4));
  for (size_t n = 0; n < 80; ++n) again->tell(unbroken.proposals[n], unbroken.outcomes[n]);
  for (size_t n = 80; n < 120; ++n) {
    EXPECT_EQ(again->propose(), unbroken.proposals[n]);
    again->tell(unbroken.proposals[n], unbroken.outcomes[n]);
  }
}

TEST(Search, ClimbsTheLadderAtOnce) {
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (int window : {1, 4}) {
      const auto proposals = proposals_of("evolve", seed, window, 3);
      EXPECT_EQ(proposals[1].genome.family, 1);
      EXPECT_EQ(proposals[2].genome.family, 2);
      EXPECT_EQ(proposals[2].parent, 1);
    }
}

TEST(Search, BeatsRandomAndBestOfN) {
  int over_random = 0, over_best_of_n = 0;
  double gap = 0, gap_random = 0, gap_best_of_n = 0;
  const double fittest = Ladder().fittest();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const double evolve = best_of("evolve", seed, 120), random = best_of("random", seed, 120),
                 best_of_n = best_of("best-of-n", seed, 120);
    over_random += evolve > random;
    over_best_of_n += evolve > best_of_n;
    gap += (fittest - evolve) / 20;
    gap_random += (fittest - random) / 20;
    gap_best_of_n += (fittest - best_of_n) / 20;
  }
  EXPECT_GE(over_random, 18);
  EXPECT_GE(over_best_of_n, 18);
  EXPECT_LT(gap, 0.3 * gap_random);
  EXPECT_LT(gap, 0.3 * gap_best_of_n);
}

// The best mode needs other tiles, stages and swizzles than the one that is good at first.
TEST(Search, FindsTheOptimumWithPatience) {
  const double fittest = Ladder().fittest();
  int found = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const double best = best_of("evolve", seed, 400);
    found += best > fittest - 0.02;
    EXPECT_GT(best, fittest - 0.25) << seed;
  }
  EXPECT_GE(found, 10);
}

TEST(Search, FailedCandidatesAreNoParents) {
  const Ladder space;
  const auto strategy = make_strategy("evolve", space, seeded(2));
  // A third of the top family fails, in a way that validity does not know of.
  Climb driver{space, *strategy};
  driver.fails = [](const Genome& g) { return g.family == 2 && g.genes[4] == 1; };
  ASSERT_TRUE(driver.run(300));
  int failed = 0;
  for (const Proposal& p : driver.proposals) {
    failed += !driver.outcomes[size_t(p.n)].ok;
    for (int64_t parent : {p.parent, p.other})
      EXPECT_TRUE(parent < 0 || driver.outcomes[size_t(parent)].ok) << p.id;
  }
  EXPECT_GT(failed, 0);
  for (const Elite& e : elites(*strategy)) EXPECT_TRUE(driver.outcomes[size_t(e.n)].ok);
  int64_t counted = 0, valid = 0;
  for (const OperatorCount& c : operator_counts(*strategy)) {
    EXPECT_LE(c.improved, c.valid);
    counted += c.tried;
    valid += c.valid;
  }
  EXPECT_EQ(counted, 298);  // all but the start, and the last, whose result was not told
  EXPECT_EQ(counted - valid, failed - !driver.outcomes.back().ok);
}

TEST(Search, GoesOnWhenNothingWorks) {
  const Ladder space;
  for (int window : {1, 4}) {
    const auto strategy = make_strategy("evolve", space, seeded(2));
    Climb driver{space, *strategy, window};
    driver.fails = [](const Genome&) { return true; };
    EXPECT_TRUE(driver.run(100));
    EXPECT_TRUE(elites(*strategy).empty());
    std::set<int> families;
    for (const Proposal& p : driver.proposals) families.insert(p.genome.family);
    EXPECT_EQ(families.size(), 3u);
  }
}

TEST(Search, ClimbsOnPastAFailingFirstTry) {
  const Ladder space;
  const auto strategy = make_strategy("evolve", space, seeded(2));
  Climb driver{space, *strategy};
  driver.run(2);
  driver.outcomes[1].ok = false;
  driver.run(3);
  EXPECT_EQ(driver.proposals[2].genome.family, 1);
  EXPECT_EQ(driver.proposals[2].parent, 0);
  EXPECT_EQ(driver.proposals[3].genome.family, 2);
}

// A rung on which everything fails does not end the ladder.
TEST(Search, ClimbsPastABrokenRung) {
  const Ladder space;
  for (int window : {1, 4}) {
    const auto strategy = make_strategy("evolve", space, seeded(2));
    Climb driver{space, *strategy, window};
    driver.fails = [](const Genome& g) { return g.family == 1; };
    driver.run(20);
    int top = 0;
    for (const Proposal& p : driver.proposals) top += p.genome.family == 2;
    EXPECT_GE(top, 10);
    EXPECT_GT(driver.best, 1.5);
  }
}

// Nor does one that has nothing valid, and it is not searched for at every step.
TEST(Search, ClimbsPastAnEmptyRung) {
  class Gap : public Ladder {
   public:
    std::string invalid_reason(const Genome& g) const override {
      return g.family == 1 ? "not here" : Ladder::invalid_reason(g);
    }
  };
  const Gap space;
  for (const std::string& name : strategy_names()) {
    const auto strategy = make_strategy(name, space, seeded(2));
    Climb driver{space, *strategy};
    EXPECT_TRUE(driver.run(100)) << name;
    EXPECT_EQ(driver.proposals[1].genome.family, 2) << name;
  }
}

TEST(Search, ASpaceThatIsUsedUpEnds) {
  const Ladder space(true);
  for (const char* name : {"evolve", "random"})
    for (int window : {1, 4}) {
      const auto strategy = make_strategy(name, space, seeded(1));
      Climb driver{space, *strategy, window};
      EXPECT_FALSE(driver.run(100)) << name;
      EXPECT_EQ(driver.proposals.size(), 5u) << name;
      EXPECT_FALSE(strategy->propose());
    }
}

TEST(Search, ArchiveKeepsTheBestOfACell) {
  const Ladder space;
  SearchOptions options = seeded(8);
  options.islands = 1;
  const auto strategy = make_strategy("evolve", space, options);
  Climb driver{space, *strategy, 1, 250};
  driver.run(250);
  driver.tell_next();
  std::map<Cell, double> best;
  for (const Proposal& p : driver.proposals) {
    const auto [at, entered] = best.emplace(space.cell(p.genome), -1);
    at->second = std::max(at->second, driver.outcomes[size_t(p.n)].fitness);
  }
  const std::vector<Elite> all = elites(*strategy);
  EXPECT_EQ(all.size(), best.size());
  for (const Elite& e : all) {
    EXPECT_EQ(e.fitness, best.at(e.cell));
    EXPECT_EQ(space.cell(driver.proposals[size_t(e.n)].genome), e.cell);
  }
}

// Elites whose proposal was made on another island; what founds a family is on all of them.
int64_t travelled(int migrate_every) {
  const Ladder space;
  SearchOptions options = seeded(3);
  options.migrate_every = migrate_every;
  const auto strategy = make_strategy("evolve", space, options);
  Climb driver{space, *strategy};
  driver.run(200);
  int64_t count = 0;
  for (const Elite& e : elites(*strategy)) {
    const Proposal& p = driver.proposals[size_t(e.n)];
    count += p.island != e.island && p.n > 2;
  }
  return count;
}

TEST(Search, TheBestMigrate) {
  EXPECT_EQ(travelled(0), 0);
  EXPECT_GT(travelled(24), 0);
}

TEST(Search, ImmigrantsComeOnStagnation) {
  const Ladder space;
  const std::string name = name_of(space, Operator::Kind::immigrant);
  std::map<int, int64_t> came;
  for (int stagnation : {10, 1000000}) {
    SearchOptions options = seeded(3);
    options.stagnation = stagnation;
    const auto strategy = make_strategy("evolve", space, options);
    Climb driver{space, *strategy};
    driver.run(250);
    came[stagnation] = tried(*strategy, name);
  }
  EXPECT_EQ(came[1000000], 6);  // two settle each island at the beginning
  EXPECT_GE(came[10], 20);
}

TEST(Search, CrossesWithinASketch) {
  const Ladder space;
  const std::string name = name_of(space, Operator::Kind::crossover);
  const auto proposals = proposals_of("evolve", 12, 1, 300);
  int crossed = 0;
  for (const Proposal& p : proposals) {
    if (p.op != name) {
      EXPECT_EQ(p.other, -1);
      continue;
    }
    ++crossed;
    const Genome &a = proposals[size_t(p.parent)].genome, &b = proposals[size_t(p.other)].genome;
    EXPECT_EQ(a.family, b.family);
    EXPECT_EQ(a.genes[4], b.genes[4]) << "parents of two sketches";
  }
  EXPECT_GT(crossed, 0);
}

// Late in a run every neighbour of the best is tried: singles first, then pairs.
TEST(Search, PolishesTheBestNearTheEnd) {
  const Ladder space;
  SearchOptions options = seeded(1);
  options.start = space.library_default();
  const auto strategy = make_strategy("evolve", space, options);
  Climb driver{space, *strategy};
  driver.run(1);
  strategy->progress(0.9);
  const size_t changes = single_changes(space, space.library_default()).size();
  EXPECT_EQ(changes, 14u);  // two a gene, but one for vec, and three for swizzle
  driver.fails = [](const Genome&) { return true; };  // the best stays what it is
  driver.run(40);
  const std::string name = name_of(space, Operator::Kind::polish);
  const Genome best = space.library_default();
  for (size_t n = 1; n < driver.proposals.size(); ++n) {
    const Proposal& p = driver.proposals[n];
    EXPECT_EQ(p.op, name);
    EXPECT_EQ(p.parent, 0);
    int differ = 0;
    for (size_t g = 0; g < best.genes.size(); ++g) differ += best.genes[g] != p.genome.genes[g];
    EXPECT_TRUE(n <= changes ? differ <= 2 : differ >= 2) << n;  // a gene, and what goes with it
  }
}

TEST(Search, PlainStrategiesHaveNoArchive) {
  const Ladder space;
  for (const char* name : {"random", "best-of-n"}) {
    const auto strategy = make_strategy(name, space, {});
    EXPECT_TRUE(operator_counts(*strategy).empty());
    EXPECT_TRUE(elites(*strategy).empty());
  }
  const auto n = proposals_of("best-of-n", 1, 1, 50);
  EXPECT_EQ(n[1].op, "default");
  EXPECT_EQ(n[1].genome, space.library_default());
  for (size_t i = 1; i < n.size(); ++i) EXPECT_EQ(n[i].genome.family, 2);
}

}  // namespace
}  // namespace attune::evolve
