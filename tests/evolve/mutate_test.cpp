#include "evolve/propose/mutate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/evolve/spaces.hpp"
#include "tests/rungs/configs.hpp"

namespace attune::evolve {
namespace {

using Kind = Operator::Kind;

const Operator& named(const std::vector<Operator>& operators, const std::string& name) {
  for (const Operator& op : operators)
    if (op.name == name) return op;
  ADD_FAILURE() << "no operator " << name;
  return operators.front();
}

Genome climb_all(const Space& space, Dice* dice) {
  const std::vector<Operator> operators = operators_of(space);
  Genome at = space.start();
  while (applies(space, operators[0], at)) {
    const auto next = apply(space, operators[0], at, at, dice);
    if (!next) break;
    EXPECT_EQ(next->family, at.family + 1);
    at = *next;
  }
  return at;
}

// ---- catalogue ----

TEST(Mutate, CatalogueIsNamedAndLevelled) {
  for (const NamedSpace& s : all_spaces()) {
    const std::vector<Operator> operators = operators_of(*s.space);
    std::set<std::string> names;
    for (const Operator& op : operators) {
      EXPECT_TRUE(names.insert(op.name).second) << op.name;
      EXPECT_FALSE(op.meaning.empty()) << op.name;
      const bool levelled = op.name.starts_with(std::string(level_name(op.level)) + ".");
      EXPECT_EQ(levelled, op.name.find('.') != std::string::npos) << op.name;
      if (op.kind != Kind::step && op.kind != Kind::leap) continue;
      for (const Family& family : s.space->families())
        for (const Gene& gene : family.genes)
          EXPECT_TRUE(gene.group != op.group || gene.level == op.level) << op.name;
    }
    EXPECT_EQ(operators[0].kind, Kind::climb);
    EXPECT_EQ(operators[1].kind, Kind::descend);
    EXPECT_EQ(operators.end()[-3].kind, Kind::crossover);
    EXPECT_EQ(operators.end()[-2].kind, Kind::polish);
    EXPECT_EQ(operators.end()[-1].kind, Kind::immigrant);
  }
  const auto cpu = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  for (const char* name : {"algorithm.split", "implementation.exp", "implementation.packing",
                           "implementation.rescale", "implementation.dot", "hardware.tile",
                           "hardware.tile.leap", "hardware.block", "hardware.isa"})
    named(operators_of(*cpu), name);
  const auto cuda = cuda_space(test_problems()[0].problems, arch_of(90));
  for (const char* name : {"algorithm.split", "implementation.vector", "implementation.staging",
                           "implementation.packing", "hardware.warps", "hardware.stages",
                           "hardware.registers", "hardware.block.leap"})
    named(operators_of(*cuda), name);
}

TEST(Mutate, AppliesWhereSomethingCanChange) {
  const auto space = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  const std::vector<Operator> operators = operators_of(*space);
  for (const Operator& op : operators) {
    EXPECT_EQ(applies(*space, op, space->start()), op.kind == Kind::climb) << op.name;
    EXPECT_EQ(applies(*space, op, space->library_default()), op.kind != Kind::climb) << op.name;
  }
  // One instruction set: nothing to flip.
  const auto one = cpu_space(test_problems()[0].problems, fake_cpu(2, false));
  EXPECT_FALSE(applies(*one, named(operators_of(*one), "hardware.isa"), one->library_default()));
}

// ---- children ----

bool family_fits(Kind kind, int child, int parent, int other) {
  switch (kind) {
    case Kind::climb:
      return child == parent + 1;
    case Kind::descend:
      return child == parent - 1;
    case Kind::immigrant:
      return child <= std::max(parent, other);
    default:
      return child == parent;
  }
}

TEST(Mutate, EveryChildIsValidCanonicalAndNew) {
  int64_t draws = 0, children = 0;
  for (const NamedSpace& s : all_spaces()) {
    const Space& space = *s.space;
    const std::vector<Operator> operators = operators_of(space);
    Dice dice(5, 5);
    // A population that grows from the bottom and the library's choice.
    std::vector<Genome> pool = {space.start(), space.library_default()};
    for (int n = 0; n < 400; ++n, ++draws) {
      const Operator& op = dice.pick(operators);
      const Genome parent = dice.pick(pool), other = dice.pick(pool);
      const auto child = apply(space, op, parent, other, &dice);
      if (!child) continue;
      ++children;
      ASSERT_EQ(space.invalid_reason(*child), "") << s.name << " " << op.name;
      ASSERT_EQ(space.canonical(*child), *child) << s.name << " " << op.name;
      ASSERT_NE(*child, parent) << s.name << " " << op.name;
      ASSERT_EQ(space.parse(space.print(*child)), *child) << s.name << " " << op.name;
      ASSERT_TRUE(family_fits(op.kind, child->family, parent.family, other.family))
          << s.name << " " << op.name;
      pool.push_back(*child);
    }
  }
  EXPECT_GT(children * 2, draws);
}

TEST(Mutate, ClimbsToTheTop) {
  for (const NamedSpace& s : all_spaces()) {
    Dice dice(6, 6);
    const Genome top = climb_all(*s.space, &dice);
    EXPECT_EQ(size_t(top.family) + 1, s.space->families().size()) << s.name;
    Genome at = top;
    const std::vector<Operator> operators = operators_of(*s.space);
    while (at.family > 0) {
      const auto lower = apply(*s.space, operators[1], at, at, &dice);
      ASSERT_TRUE(lower.has_value()) << s.name;
      at = *lower;
    }
    EXPECT_EQ(at, s.space->start()) << s.name;
  }
}

TEST(Mutate, ClimbKeepsGenesOfTheSameName) {
  const auto space = cuda_space(test_problems()[1].problems, arch_of(90));
  const auto fused = space->parse("fused.bq64.bk32.v1");
  ASSERT_TRUE(fused.has_value());
  Dice dice(1, 1);
  const auto child = apply(*space, operators_of(*space)[0], *fused, *fused, &dice);
  ASSERT_TRUE(child.has_value());
  const Config config = config_in(*space, *child);
  EXPECT_STREQ(config.rung->name, "mma");
  EXPECT_EQ(value_of(config, "block_k"), 32);
  EXPECT_EQ(value_of(config, "vector"), 1);
  EXPECT_NE(*child, space->library_default()) << "the search must find that by itself";
}

TEST(Mutate, StepsStayNearAndLeapsReachAll) {
  const auto space = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  const std::vector<Operator> operators = operators_of(*space);
  const Genome from = space->library_default();
  std::set<std::string> stepped, leapt;
  for (uint64_t n = 0; n < 300; ++n) {
    Dice dice(8, n);
    if (const auto child = apply(*space, named(operators, "hardware.block"), from, from, &dice)) {
      int changed = 0;
      for (size_t g = 0; g < from.genes.size(); ++g) changed += child->genes[g] != from.genes[g];
      EXPECT_EQ(changed, 1) << space->print(*child);
      stepped.insert(space->print(*child));
    }
    if (const auto child = apply(*space, named(operators, "hardware.tile.leap"), from, from, &dice))
      leapt.insert(space->print(*child));
  }
  // From block_q 384 to 256 or 512, from block_k 256 to 224.
  EXPECT_EQ(stepped.size(), 3u);
  EXPECT_EQ(leapt.size(), std::size(cpu::kTiles) - 1);
}

TEST(Mutate, CrossoverMixesParentsOfOneSketch) {
  const auto space = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  const Operator op = named(operators_of(*space), "crossover");
  Dice dice(9, 9);
  const auto a = space->parse("fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8").value();
  const auto b = space->parse("fused.AVX3.mr8.nv3.exp6.bq384.bk64.sp0.dot2.pv1.rs4").value();
  const auto far = space->parse("fused.AVX2.mr6.nv2.exp6.bq384.bk64.sp0.dot2.pv1.rs4").value();
  std::set<std::string> children;
  for (int n = 0; n < 200; ++n) {
    const auto child = apply(*space, op, a, b, &dice);
    ASSERT_TRUE(child.has_value());
    EXPECT_NE(*child, a);
    EXPECT_NE(*child, b);
    children.insert(space->print(*child));
    EXPECT_FALSE(apply(*space, op, a, far, &dice).has_value());
    EXPECT_FALSE(apply(*space, op, a, space->start(), &dice).has_value());
    EXPECT_FALSE(apply(*space, op, a, a, &dice).has_value());
  }
  EXPECT_GT(children.size(), 20u);
}

TEST(Mutate, RandomGenomesAreValidAndVaried) {
  for (const NamedSpace& s : all_spaces())
    for (int family = 0; family < int(s.space->families().size()); ++family) {
      Dice dice(10, uint64_t(family));
      std::set<std::string> seen;
      for (int n = 0; n < 30; ++n) {
        const Genome genome = random_genome(*s.space, family, &dice);
        ASSERT_EQ(genome.family, family) << s.name;
        ASSERT_EQ(s.space->invalid_reason(genome), "") << s.name;
        ASSERT_EQ(s.space->canonical(genome), genome) << s.name;
        seen.insert(s.space->print(genome));
      }
      const size_t genes = s.space->families()[size_t(family)].genes.size();
      EXPECT_GE(seen.size(), genes == 0 ? 1u : genes == 3 ? 2u : 8u) << s.name << family;
    }
}

TEST(Mutate, FollowsFromTheDiceAlone) {
  for (const NamedSpace& s : all_spaces()) {
    const std::vector<Operator> operators = operators_of(*s.space);
    const auto lineage = [&] {
      std::vector<std::string> ids;
      Genome at = s.space->start(), other = s.space->library_default();
      for (uint64_t n = 0; n < 40; ++n) {
        Dice dice(11, n);
        const auto child = apply(*s.space, dice.pick(operators), at, other, &dice);
        ids.push_back(child ? s.space->print(*child) : "");
        if (child) other = std::exchange(at, *child);
      }
      return ids;
    };
    EXPECT_EQ(lineage(), lineage()) << s.name;
  }
}

}  // namespace
}  // namespace attune::evolve
