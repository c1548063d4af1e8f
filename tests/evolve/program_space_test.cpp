#include "evolve/genome/program_space.hpp"

#include <gtest/gtest.h>

#include <set>

#include "evolve/genome/program.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/propose/search.hpp"
#include "src/file.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

constexpr const char* kText =
    "constexpr int A = 2;  // EVOLVE-PARAM A {1,2,3} hardware: a\n"
    "// EVOLVE-PARAM M {4,8}\n"
    "// EVOLVE-BLOCK-START f\n"
    "void f() {\n"
    "  for (;;) g();\n"
    "}\n"
    "// EVOLVE-BLOCK-END\n"
    "void run() { f(); }\n";
constexpr const char* kOther =
    "// EVOLVE-BLOCK-START f\n"
    "constexpr int B = 1;  // EVOLVE-PARAM B {1,2} algorithm: b\n"
    "void f() {}\n"
    "// EVOLVE-BLOCK-END\n";

ProgramSource source_of(std::string text, std::vector<ProgramSource::Other> others = {}) {
  ProgramSource source;
  source.name = "start";
  source.text = std::move(text);
  source.others = std::move(others);
  return source;
}

std::unique_ptr<Space> space_of(const ProgramSource& source) {
  std::unique_ptr<Space> space;
  const Status s = program_space(source, &space);
  EXPECT_TRUE(s.ok()) << s.message;
  return space;
}

TEST(ProgramSpace, StartIsTheProgramItself) {
  ProgramSource source = source_of(kText, {{"other", kOther}});
  source.flags = host_flag_choices();
  const auto space = space_of(source);
  // The macro is set to its first value: the text alone would not compile without it.
  EXPECT_EQ(space->program(space->start()), kText + std::string("// attune-flags: -DM=4\n"));
  EXPECT_EQ(space->print(space->start()), "start");
  EXPECT_EQ(space->library_default(), space->start());
}

TEST(ProgramSpace, DeclaredFlagsAreGenes) {
  const std::string text =
      "// EVOLVE-PARAM REGISTERS {none,-maxrregcount=64} hardware: of a thread\n"
      "// EVOLVE-PARAM MATH {none,-use_fast_math,-ftz=true}\n"
      "__global__ void k() {}\n";
  ProgramSource source = source_of(text);
  source.language = Language::cuda;
  const auto space = space_of(source);
  EXPECT_EQ(space->program(space->start()), text);
  const auto genome = space->parse("start[REGISTERS=-maxrregcount=64; MATH=-ftz=true]");
  ASSERT_TRUE(genome.has_value());
  EXPECT_EQ(space->print(*genome), "start[REGISTERS=-maxrregcount=64; MATH=-ftz=true]");
  EXPECT_EQ(space->program(*genome), text + "// attune-flags: -maxrregcount=64 -ftz=true\n");
  std::unique_ptr<Space> refused;
  for (const char* values : {"{none,-Xcompiler=x}", "{none,-maxrregcount=8}", "{-fmad=true,8}"}) {
    source.text = std::string("// EVOLVE-PARAM F ") + values + "\n";
    const Status s = program_space(source, &refused);
    EXPECT_FALSE(s.ok()) << values;
    EXPECT_NE(s.message.find("line 1"), std::string::npos) << s.message;
  }
  source.text = "int F = 1;  // EVOLVE-PARAM F {1,-ftz=true}\n";
  EXPECT_FALSE(program_space(source, &refused).ok()) << "no flag stands in code";
}

TEST(ProgramSpace, EachTextOfACatalogueIsTriedAloneFirst) {
  std::string third = kOther;
  third.replace(third.find("void f() {}"), 11, "void f() { }");
  const auto space = space_of(source_of(kText, {{"other", kOther}, {"third", third}}));
  const auto search = make_strategy("evolve", *space, {});
  std::vector<std::string> ids;
  for (int n = 0; n < 3; ++n) ids.push_back(search->propose().value().id);
  EXPECT_EQ(ids[1], "start[block.f=other]");
  EXPECT_EQ(ids[2], "start[block.f=third]");
}

TEST(ProgramSpace, GenesSayWhatTheyAre) {
  ProgramSource source = source_of(kText, {{"other", kOther}});
  source.flags = host_flag_choices();
  const auto space = space_of(source);
  std::set<std::string> names;
  for (const Gene& gene : space->families()[0].genes) {
    names.insert(gene.name);
    EXPECT_EQ(gene.labels.size(), gene.values.size()) << gene.name;
  }
  for (const char* name : {"block.f", "A", "M", "B", "loop.f.1", "flags.math", "flags.optimise"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(ProgramSpace, PrintedGenomesMakeTheirText) {
  const auto space = space_of(source_of(kText, {{"other", kOther}}));
  const auto text = [&](const char* printed) {
    const auto genome = space->parse(printed);
    EXPECT_TRUE(genome) << printed;
    return genome ? space->program(space->canonical(*genome)) : "";
  };
  EXPECT_NE(text("start[A=3]").find("constexpr int A = 3;"), std::string::npos);
  EXPECT_NE(text("start[M=8]").find("-DM=8"), std::string::npos);
  EXPECT_NE(text("start[loop.f.1=4]").find("  #pragma GCC unroll 4\n  for (;;) g();"),
            std::string::npos);
  EXPECT_NE(text("start[block.f=other; B=2]").find("constexpr int B = 2;"), std::string::npos);
  // A tunable of a text that is not chosen has no effect, and so its start's value.
  EXPECT_EQ(text("start[B=2]"), text("start"));
  EXPECT_EQ(text("start[block.f=other; loop.f.1=4]"), text("start[block.f=other]"));
  for (const char* wrong :
       {"", "other", "start[", "start[A]", "start[A=9]", "start[C=1]", "start[A=3"})
    EXPECT_FALSE(space->parse(wrong)) << wrong;
}

TEST(ProgramSpace, RefusesWhatCannotBeChosenFrom) {
  const auto why = [](const ProgramSource& source) {
    std::unique_ptr<Space> space;
    const Status s = program_space(source, &space);
    EXPECT_FALSE(s.ok());
    return s.message;
  };
  EXPECT_EQ(why(source_of("int x;\n")).rfind("start.cpp: nothing in it may change", 0), 0u);
  EXPECT_NE(why(source_of("// EVOLVE-BLOCK-START\nint x;\n// EVOLVE-BLOCK-END\n"))
                .find("there is nothing to choose"),
            std::string::npos);
  EXPECT_NE(why(source_of(kText, {{"b", "// EVOLVE-BLOCK-START h\n// EVOLVE-BLOCK-END\n"}}))
                .find("b: it has none of the blocks of start.cpp: f"),
            std::string::npos);
  EXPECT_NE(why(source_of(kText, {{"b", "// EVOLVE-BLOCK-START f\n"}})).find("b: line 1:"),
            std::string::npos);
  EXPECT_NE(why(source_of(kText, {{"b",
                                   "// EVOLVE-BLOCK-START f\nint A = 5;  // EVOLVE-PARAM A {5,6}\n"
                                   "// EVOLVE-BLOCK-END\n"}}))
                .find("b: EVOLVE-PARAM A has other values"),
            std::string::npos);
}

// Any genome of the shipped example: it keeps what stands outside the markers, its printed form
// makes the same text, and genomes of one canonical form make one text.
TEST(ProgramSpace, RandomGenomesKeepWhatStandsOutside) {
  const auto read = [](const std::string& name) {
    return read_text(source_dir() + "/examples/cpu_attention/" + name);
  };
  ProgramSource source = source_of(read("naive.cpp"), {{"online", read("catalogue/online.cpp")},
                                                       {"tiled", read("catalogue/tiled.cpp")}});
  source.flags = host_flag_choices();
  const auto space = space_of(source);
  Dice dice(11, 0);
  std::set<std::string> texts;
  for (int n = 0; n < 300; ++n) {
    Genome genome{0, {}};
    for (const Gene& gene : space->families()[0].genes)
      genome.genes.push_back(dice.pick(gene.values));
    const Genome canonical = space->canonical(genome);
    EXPECT_EQ(space->canonical(canonical), canonical);
    EXPECT_EQ(space->invalid_reason(canonical), "");
    const std::string text = space->program(canonical);
    EXPECT_TRUE(keeps_outside(source, text)) << space->print(canonical);
    EXPECT_EQ(space->parse(space->print(canonical)), canonical);
    std::string refused;
    flags_of(text, Language::cpp, &refused);
    EXPECT_EQ(refused, "");
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 250u);
  EXPECT_FALSE(keeps_outside(source, source.text + "int x;\n"));
  EXPECT_FALSE(keeps_outside(source, ""));
}

}  // namespace
}  // namespace attune::evolve
