// A space that learns texts of blocks: what was there before stays what it was.
#include <gtest/gtest.h>

#include "evolve/compile/flags.hpp"
#include "evolve/genome/program.hpp"
#include "evolve/genome/program_space.hpp"
#include "evolve/propose/search.hpp"

namespace attune::evolve {
namespace {

constexpr const char* kText =
    "constexpr int A = 2;  // EVOLVE-PARAM A {1,2,3} hardware: a\n"
    "// EVOLVE-BLOCK-START f\n"
    "constexpr int T = 4;  // EVOLVE-PARAM T {2,4,8}\n"
    "void f() {\n"
    "  for (;;) g();\n"
    "}\n"
    "// EVOLVE-BLOCK-END\n"
    "// EVOLVE-BLOCK-START h\n"
    "void h();\n"
    "// EVOLVE-BLOCK-END\n"
    "void run() { f(); }\n";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class Growth : public testing::Test {
 protected:
  void SetUp() override {
    ProgramSource source;
    source.name = "start";
    source.text = kText;
    source.flags = host_flag_choices();
    const Status s = program_space(source, &made_, true);
    ASSERT_TRUE(s.ok()) << s.message;
    space_ = dynamic_cast<GrowingSpace*>(made_.get());
    ASSERT_NE(space_, nullptr);
  }

  // Learns what is new in it.
  Genome take(const std::string& text, const Genome& parent, const std::string& label) {
    NewTexts news;
    Genome genome;
    const Status s = space_->read_text(text, parent, label, &news, &genome);
    EXPECT_TRUE(s.ok()) << s.message;
    EXPECT_TRUE(space_->learn(news).ok());
    texts_ = news.texts.size();
    return genome;
  }
  Genome parsed(const std::string& id) const {
    const auto genome = space_->parse(id);
    EXPECT_TRUE(genome) << id;
    return genome.value_or(space_->start());
  }

  std::unique_ptr<Space> made_;
  GrowingSpace* space_ = nullptr;
  size_t texts_ = 0;
};

TEST_F(Growth, ANewTextIsAValueOfItsBlock) {
  const std::string text = with(kText, "for (;;) g();", "for (;;) g2();");
  const Genome genome = take(text, space_->start(), "m1");
  EXPECT_EQ(texts_, 1u);
  EXPECT_EQ(space_->print(genome), "start[block.f=m1]");
  EXPECT_EQ(space_->program(genome), text);
  EXPECT_EQ(space_->parse("start[block.f=m1]"), genome);
  EXPECT_TRUE(space_->invalid_reason(genome).empty());
  EXPECT_TRUE(space_->has_label("m1"));
}

TEST_F(Growth, OldGenomesStayWhatTheyAre) {
  const std::vector<std::string> ids = {"start", "start[A=3; T=8]", "start[loop.f.1=4]",
                                        "start[flags.optimise=O2]"};
  std::vector<Genome> old;
  std::vector<std::string> texts;
  std::vector<Cell> cells;
  for (const std::string& id : ids) {
    old.push_back(parsed(id));
    texts.push_back(space_->program(old.back()));
    cells.push_back(space_->cell(old.back()));
  }
  take(with(kText, "void h();\n",
            "constexpr int N = 1;  // EVOLVE-PARAM N {1,2}\nvoid h() { for (;;) N; }\n"),
       space_->start(), "m1");
  take(with(kText, "  for (;;) g();\n", "  for (;;) g();\n  for (;;) g();\n"), space_->start(),
       "m2");
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(space_->print(old[i]), ids[i]);
    EXPECT_EQ(space_->program(old[i]), texts[i]);
    EXPECT_EQ(space_->cell(old[i]), cells[i]);
    EXPECT_TRUE(space_->invalid_reason(old[i]).empty());
    const Genome now = space_->grown(old[i]);
    EXPECT_EQ(space_->canonical(now), now);
    EXPECT_EQ(space_->print(now), ids[i]);
  }
  // Operators work on the new text's own tunable and loops.
  EXPECT_NE(space_->program(parsed("start[block.h=m1; N=2]")).find("N = 2;"), std::string::npos);
  const std::string unrolled = space_->program(parsed("start[block.f=m2; loop.f.2=8]"));
  EXPECT_NE(unrolled.find("  for (;;) g();\n  #pragma GCC unroll 8\n  for"), std::string::npos);
}

TEST_F(Growth, ValuesAreGenesAndNoNewText) {
  const Genome parent = parsed("start[loop.f.1=4; T=8; flags.optimise=O2]");
  const std::string shown = without_flags_comment(space_->program(parent));
  const Genome genome = take(with(shown, "A = 2;", "A = 1;"), parent, "m1");
  EXPECT_EQ(texts_, 0u);
  EXPECT_EQ(space_->growth(), 0);
  EXPECT_EQ(space_->print(genome), "start[A=1; T=8; loop.f.1=4; flags.optimise=O2]");
}

TEST_F(Growth, PragmasOfTheParentStayGenes) {
  const Genome parent = parsed("start[loop.f.1=4]");
  const std::string shown = space_->program(parent);
  const Genome genome = take(with(shown, "for (;;) g();", "for (;;) g3();"), parent, "m1");
  EXPECT_EQ(space_->print(genome), "start[loop.f.1=4; block.f=m1]");
  EXPECT_EQ(space_->program(genome), with(shown, "for (;;) g();", "for (;;) g3();"));
  const std::string bare = with(shown, "  #pragma GCC unroll 4\n", "");
  EXPECT_EQ(space_->print(take(bare, parent, "m2")), "start") << "it was taken out";
}

TEST_F(Growth, WhatLiesOutsideStays) {
  NewTexts news;
  Genome genome;
  const auto why = [&](const std::string& text) {
    return space_->read_text(text, space_->start(), "m1", &news, &genome).message;
  };
  EXPECT_EQ(why(with(kText, "void run()", "static void run()")), kOutsideChanged);
  EXPECT_EQ(why(with(kText, "START f", "START  f")), kOutsideChanged);
  EXPECT_EQ(why(std::string(kText) + "int more;\n"), kOutsideChanged);
  EXPECT_EQ(why(std::string(kText) + "// EVOLVE-BLOCK-START q\n// EVOLVE-BLOCK-END\n"),
            kOutsideChanged);
  EXPECT_NE(why(with(kText, "// EVOLVE-BLOCK-END", "")), "");
  EXPECT_NE(why(with(kText, "A = 2;", "A = 7;")), "") << "no value of it";
  EXPECT_NE(why(with(kText, "{2,4,8}", "{2,4}")).find("other values"), std::string::npos);
  EXPECT_EQ(space_->growth(), 0);
}

TEST_F(Growth, AStrategyGoesOnWithTheNewText) {
  SearchOptions options;
  options.seed = 3;
  const auto strategy = make_strategy("evolve", *space_, options);
  ASSERT_TRUE(strategy->propose());
  strategy->tell({0, space_->start(), "start", "start", -1, -1, 0}, {true, 0, true});
  const Genome genome = take(with(kText, "g();", "g9();"), space_->start(), "m1");
  const auto offered = strategy->offer(genome, "model", 0);
  ASSERT_TRUE(offered);
  EXPECT_EQ(offered->n, 1);
  EXPECT_EQ(offered->op, "model");
  EXPECT_FALSE(strategy->offer(genome, "model", 0)) << "twice";
  strategy->tell(*offered, {true, 1, true});
  int with_it = 0;
  for (int n = 0; n < 40; ++n) {
    const auto next = strategy->propose();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->genome.genes.size(), genome.genes.size());
    with_it += next->id.find("block.f=m1") != std::string::npos;
    strategy->tell(*next, {true, 0.5, false});
  }
  EXPECT_GT(with_it, 5);
}

}  // namespace
}  // namespace attune::evolve
