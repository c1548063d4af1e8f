#include "evolve/propose/archive.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "evolve/propose/polish.hpp"
#include "tests/evolve/ladder.hpp"

namespace attune::evolve {
namespace {

TEST(Archive, EldersStayAmongEquals) {
  Archive archive;
  EXPECT_TRUE(archive.insert({{1, 0, 0}}, {3, 0.5}));
  EXPECT_FALSE(archive.insert({{1, 0, 0}}, {4, 0.5}));
  EXPECT_FALSE(archive.insert({{1, 0, 0}}, {5, 0.4}));
  EXPECT_TRUE(archive.insert({{2, 0, 0}}, {6, 0.5}));
  EXPECT_EQ(archive.best().n, 3);
  EXPECT_TRUE(archive.insert({{2, 0, 0}}, {7, 0.6}));
  EXPECT_EQ(archive.best().n, 7);
  EXPECT_EQ(archive.cells().size(), 2u);
}

TEST(Polish, PairsOfTheLeastHarmfulChangesComeFirst) {
  const std::vector<Change> singles{{0, 1}, {0, 2}, {1, 5}, {2, 7}};
  const auto pairs = pairs_of(singles, {-3, -1, -2, -1});
  ASSERT_EQ(pairs.size(), 5u);  // not the two changes of one gene
  EXPECT_EQ(pairs[0], (std::vector<Change>{{0, 2}, {2, 7}}));
  EXPECT_EQ(pairs[1], (std::vector<Change>{{0, 2}, {1, 5}}));
  EXPECT_EQ(pairs[4], (std::vector<Change>{{0, 1}, {1, 5}}));
}

TEST(Credit, FollowsWhatPays) {
  const Ladder space;
  Credit credit(operators_of(space));
  std::vector<size_t> all(credit.operators().size());
  std::iota(all.begin(), all.end(), size_t{0});
  for (int i = 0; i < 30; ++i)
    for (const Operator& op : credit.operators())
      credit.charge(op.name, true, false, op.name == credit.operators()[2].name);
  std::vector<int> chosen(all.size());
  Dice dice(1, 1);
  for (int i = 0; i < 4000; ++i) ++chosen[credit.choose(all, &dice)];
  EXPECT_GT(chosen[2], 2000);
  for (size_t i : all) EXPECT_GT(chosen[i], 20) << "forgotten: " << credit.operators()[i].name;
}

TEST(Polish, NeighboursOfOrderedAndOtherGenes) {
  const Ladder space;
  const Genome genome{2, {1, 64, 64, 2, 1, 4, 2}};
  const std::vector<Change> singles = single_changes(space, genome);
  const std::vector<Change> expected{{0, 2}, {1, 32}, {1, 128}, {2, 48}, {2, 96}, {3, 1}, {3, 3},
                                     {4, 0}, {4, 2},  {5, 2},   {5, 8},  {6, 0},  {6, 1}, {6, 3}};
  EXPECT_EQ(singles, expected);
}

// A change that does not go with the rest takes along what it needs, and is not undone.
TEST(Polish, RepairsAroundAChange) {
  const Ladder space;
  const Genome genome{2, {1, 64, 64, 1, 1, 4, 0}};
  Genome changed;
  ASSERT_TRUE(change(space, genome, {{4, 2}}, &changed));
  EXPECT_EQ(changed.genes[4], 2);
  EXPECT_GE(changed.genes[3], 2);
  EXPECT_EQ(space.invalid_reason(changed), "");
}

}  // namespace
}  // namespace attune::evolve
