#include "evolve/genome/program.hpp"

#include <gtest/gtest.h>

#include "evolve/propose/dice.hpp"

namespace attune::evolve {
namespace {

const std::string kProgram =
    "#define TILE 64  // EVOLVE-PARAM TILE {16,32,64} algorithm: rows of a tile\n"
    "// EVOLVE-PARAM WIDTH {1,2}\n"
    "int before();\n"
    "// EVOLVE-BLOCK-START sum\n"
    "constexpr int STEP{4};  /* EVOLVE-PARAM STEP {2, 4} hardware */\n"
    "int sum(const int* x) {\n"
    "  for (int i = 0; i < 4; ++i)\n"
    "    for(int j = 0; j < 4; ++j) work(x, i, j);\n"
    "}\n"
    "// EVOLVE-BLOCK-END\n"
    "int behind();\n"
    "# EVOLVE-BLOCK-START\n"
    "int other();\n"
    "# EVOLVE-BLOCK-END\n";

ProgramText read(const std::string& text) {
  ProgramText program;
  const Status s = parse_program(text, &program);
  EXPECT_TRUE(s.ok()) << s.message;
  return program;
}

TEST(Program, BlocksAndTunablesAreFound) {
  const ProgramText p = read(kProgram);
  ASSERT_EQ(p.blocks.size(), 2u);
  EXPECT_EQ(p.blocks[0].name, "sum");
  EXPECT_EQ(p.blocks[0].line, 4);
  EXPECT_TRUE(p.blocks[0].text.starts_with("constexpr int STEP"));
  EXPECT_TRUE(p.blocks[0].text.ends_with("}\n"));
  EXPECT_EQ(p.blocks[1].name, "block2");
  EXPECT_EQ(p.blocks[1].text, "int other();\n");

  ASSERT_EQ(p.tunables.size(), 3u);
  EXPECT_EQ(p.tunables[0].name, "TILE");
  EXPECT_EQ(p.tunables[0].values, (std::vector<std::string>{"16", "32", "64"}));
  EXPECT_EQ(p.tunables[0].own, 2);
  EXPECT_EQ(p.tunables[0].level, Level::algorithm);
  EXPECT_EQ(p.tunables[0].meaning, "rows of a tile");
  EXPECT_FALSE(p.tunables[0].macro);
  EXPECT_TRUE(p.tunables[1].macro);
  EXPECT_EQ(p.tunables[1].level, Level::implementation);
  EXPECT_EQ(p.tunables[2].own, 1);
  EXPECT_EQ(p.tunables[2].level, Level::hardware);
  EXPECT_EQ(p.tunables[2].meaning, "");
  EXPECT_EQ(tunables_in(p.blocks[0].text).size(), 1u);

  EXPECT_EQ(with_blocks(p, {p.blocks[0].text, p.blocks[1].text}), kProgram);
}

TEST(Program, MarkersStandInAnyComment) {
  for (const char* open : {"//", "#", "--", ";", "%", "!", "/*", "<!--", "(*", "\"\"\""}) {
    const std::string text =
        std::string("a\n") + open + " EVOLVE-BLOCK-START x\nb\r\n  " + open + "EVOLVE-BLOCK-END\nc";
    const ProgramText p = read(text);
    ASSERT_EQ(p.blocks.size(), 1u) << open;
    EXPECT_EQ(p.blocks[0].text, "b\r\n") << open;
    EXPECT_EQ(with_blocks(p, {p.blocks[0].text}), text) << open;
  }
}

TEST(Program, WordsThatOnlyResembleMarkersAreText) {
  ProgramText p;
  EXPECT_FALSE(parse_program("// EVOLVE-BLOCK-STARTED\n// MY-EVOLVE-BLOCK-END\n", &p).ok());
  EXPECT_TRUE(p.blocks.empty());
}

struct Refused {
  const char *text, *why;
};
void PrintTo(const Refused& r, std::ostream* out) { *out << r.why; }
class RefusedPrograms : public testing::TestWithParam<Refused> {};

TEST_P(RefusedPrograms, NameTheLine) {
  ProgramText p;
  const Status s = parse_program(GetParam().text, &p);
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message.find(GetParam().why), std::string::npos) << s.message;
}

INSTANTIATE_TEST_SUITE_P(
    Program, RefusedPrograms,
    testing::Values(Refused{"", "nothing in it may change"},
                    Refused{"int x;\n", "nothing in it may change"},
                    Refused{"\n// EVOLVE-BLOCK-START\nint x;\n",
                            "line 2: EVOLVE-BLOCK-START without EVOLVE-BLOCK-END"},
                    Refused{"\n\n// EVOLVE-BLOCK-END\n",
                            "line 3: EVOLVE-BLOCK-END without EVOLVE-BLOCK-START"},
                    Refused{"// EVOLVE-BLOCK-START\n// EVOLVE-BLOCK-START\n// EVOLVE-BLOCK-END\n",
                            "line 2: EVOLVE-BLOCK-START in the block of line 1"},
                    Refused{"// EVOLVE-BLOCK-START EVOLVE-BLOCK-END\n",
                            "line 1: a block begins and ends on one line"},
                    Refused{"// EVOLVE-BLOCK-START a\n// EVOLVE-BLOCK-END\n"
                            "// EVOLVE-BLOCK-START a\n// EVOLVE-BLOCK-END\n",
                            "line 3: the block of line 1 is called a too"},
                    Refused{"// EVOLVE-PARAM\n", "line 1: EVOLVE-PARAM: it has no name"},
                    Refused{"// EVOLVE-PARAM N\n", "line 1: EVOLVE-PARAM: its values are missing"},
                    Refused{"// EVOLVE-PARAM N {}\n", "'' cannot be a value"},
                    Refused{"// EVOLVE-PARAM N {1,,2}\n", "'' cannot be a value"},
                    Refused{"// EVOLVE-PARAM N {1;system(),2}\n", "cannot be a value"},
                    Refused{"// EVOLVE-PARAM N {1,2,1}\n", "the value 1 stands there twice"},
                    Refused{"int n = 3;  // EVOLVE-PARAM N {1,2}\n", "the line does not set N"},
                    Refused{"int N = 3;  // EVOLVE-PARAM N {1,2}\n", "N is 3 here"},
                    Refused{"// EVOLVE-PARAM N {1,2}\n\n// EVOLVE-PARAM N {1,2}\n",
                            "line 3: EVOLVE-PARAM: N was declared in line 1"}));

TEST(Program, ValuesAreSetOnTheirLinesAlone) {
  EXPECT_NE(with_value(kProgram, "TILE", "16").find("#define TILE 16  // EVOLVE-PARAM TILE {16,"),
            std::string::npos);
  EXPECT_NE(with_value(kProgram, "STEP", "2").find("constexpr int STEP{2};  /*"),
            std::string::npos);
  EXPECT_EQ(with_value(kProgram, "WIDTH", "2"), kProgram) << "a macro has no line";
  EXPECT_EQ(with_value(kProgram, "TIL", "16"), kProgram);
  EXPECT_EQ(with_value(with_value(kProgram, "TILE", "16"), "TILE", "64"), kProgram);
}

TEST(Program, LoopsAndKernelsAreCounted) {
  const std::string block = read(kProgram).blocks[0].text;
  EXPECT_EQ(loops_of(block), 2);
  EXPECT_NE(
      with_pragma(block, 1, "#pragma GCC unroll 4").find("    #pragma GCC unroll 4\n    for("),
      std::string::npos);
  EXPECT_EQ(with_pragma(block, 2, "#pragma GCC unroll 4"), block);

  const std::string kernels =
      "__global__ void __launch_bounds__(32) a() {}\n__global__ void b() {}\n";
  EXPECT_EQ(kernels_of(kernels), 1);
  EXPECT_EQ(with_launch_bounds(kernels, 0, "128"),
            "__global__ void __launch_bounds__(32) a() {}\n"
            "__global__ void __launch_bounds__(128) b() {}\n");
  EXPECT_EQ(with_launch_bounds(kernels, 1, "128"), kernels);
}

// ---- what may not change ----

TEST(Program, TheHashSeesWhatStandsOutside) {
  const std::string own = outside_hash(kProgram);
  ASSERT_FALSE(own.empty());
  const ProgramText p = read(kProgram);
  EXPECT_EQ(outside_hash(with_blocks(p, {"anything\n", ""})), own);
  EXPECT_EQ(outside_hash(with_value(kProgram, "TILE", "32")), own);
  // A block that closes itself and opens another one brings lines outside.
  EXPECT_NE(outside_hash(with_blocks(
                p, {"// EVOLVE-BLOCK-END\nint evil;\n// EVOLVE-BLOCK-START\n", p.blocks[1].text})),
            own);
  EXPECT_NE(outside_hash(with_blocks(p, {"// EVOLVE-BLOCK-END\n", p.blocks[1].text})), own);
  // A block without its last line break swallows the marker, or moves it.
  EXPECT_NE(outside_hash(with_blocks(p, {"int x;", p.blocks[1].text})), own);
}

// Any byte outside the blocks, and outside of tunables' values, that changes is seen.
TEST(Program, TheHashSeesEveryByte) {
  const std::string own = outside_hash(kProgram);
  const ProgramText p = read(kProgram);
  std::vector<bool> free(kProgram.size());
  for (const Block& b : p.blocks) {
    const size_t at = kProgram.find(b.text);
    std::fill_n(free.begin() + long(at), b.text.size(), true);
  }
  const size_t value = kProgram.find("64");
  free[value] = free[value + 1] = true;
  for (size_t at = 0; at < kProgram.size(); ++at) {
    std::string changed = kProgram;
    changed[at] = changed[at] == '~' ? '+' : '~';
    if (free[at]) continue;
    EXPECT_NE(outside_hash(changed), own) << "byte " << at << " of " << kProgram.substr(at, 20);
    EXPECT_NE(outside_hash(kProgram.substr(0, at) + kProgram.substr(at + 1)), own) << at;
  }
}

// Random texts: whatever is read is put together again as it was.
TEST(Program, RandomTextsAreKeptWhole) {
  const std::vector<std::string> pieces = {"// EVOLVE-BLOCK-START",
                                           "// EVOLVE-BLOCK-END",
                                           " name",
                                           "\n",
                                           "\n",
                                           "\n",
                                           "for (;;) {",
                                           "// EVOLVE-PARAM N {1,2",
                                           "}",
                                           "N = 1",
                                           "\r\n",
                                           "\t",
                                           " ",
                                           "/*",
                                           "{",
                                           "__global__ void k()",
                                           "\xff\xfe",
                                           "N",
                                           "//"};
  Dice dice(7, 0);
  int read_texts = 0;
  for (int n = 0; n < 20000; ++n) {
    std::string text;
    for (int64_t left = dice.below(24); left > 0; --left) text += dice.pick(pieces);
    ProgramText p;
    if (!parse_program(text, &p).ok()) continue;
    ++read_texts;
    std::vector<std::string> blocks;
    for (const Block& b : p.blocks) {
      blocks.push_back(b.text);
      for (int loop = 0; loop < loops_of(b.text); ++loop) with_pragma(b.text, loop, "#pragma x");
      for (int k = 0; k < kernels_of(b.text); ++k) with_launch_bounds(b.text, k, "64");
    }
    EXPECT_EQ(with_blocks(p, blocks), text);
    for (const Tunable& t : p.tunables) {
      EXPECT_EQ(with_value(text, t.name, t.values[size_t(t.own)]), text);
      EXPECT_EQ(outside_hash(with_value(text, t.name, t.values.back())), outside_hash(text));
    }
  }
  EXPECT_GT(read_texts, 200);
}

}  // namespace
}  // namespace attune::evolve
