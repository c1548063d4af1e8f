#include "evolve/propose/edits.hpp"

#include <gtest/gtest.h>

namespace attune::evolve {
namespace {

const std::string kParent =
    "int before;\n"
    "// EVOLVE-BLOCK-START one\n"
    "int x = 1;\n"
    "int max = 1;\n"
    "// EVOLVE-BLOCK-END\n"
    "// EVOLVE-BLOCK-START two\n"
    "int y = 1;\n"
    "// EVOLVE-BLOCK-END\n";

std::string edit(const std::string& search, const std::string& replace) {
  return "<<<<<<< SEARCH\n" + search + "=======\n" + replace + ">>>>>>> REPLACE\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(Edits, AreMadeOneAfterTheOther) {
  const AppliedAnswer a =
      apply_answer("I change two places.\n" + edit("int x = 1;\n", "int x = 2;\n") + "and\n" +
                       edit("int x = 2;\n", "int x = 3;\nint z;\n"),
                   kParent);
  ASSERT_TRUE(a.ok()) << a.why;
  EXPECT_EQ(a.text, replaced(kParent, "int x = 1;\n", "int x = 3;\nint z;\n"));
  EXPECT_EQ(a.form, "edits");
  EXPECT_EQ(a.edits, 2);
}

TEST(Edits, MatchWholeLinesExactlyOnce) {
  // "x = 1;" is the end of another line too.
  EXPECT_TRUE(apply_answer(edit("int x = 1;\n", "\n"), kParent).ok());
  const std::string twice = kParent + "int x = 1;\n";
  for (const auto& [search, parent, complaint] : {std::tuple{"int q;\n", kParent, "nowhere"},
                                                  {"int x = 1;\n", twice, "2 times"},
                                                  {"x = 1;\n", kParent, "nowhere"},
                                                  {" int x = 1;\n", kParent, "nowhere"},
                                                  {"", kParent, "nothing to search for"},
                                                  {"\n \n", kParent, "nothing to search for"}}) {
    const AppliedAnswer a = apply_answer(edit(search, "int n;\n"), parent);
    EXPECT_FALSE(a.ok()) << search;
    EXPECT_NE(a.why.find(complaint), std::string::npos) << a.why;
    EXPECT_TRUE(a.text.empty());
  }
}

TEST(Edits, SayWhatIsMissing) {
  for (const auto& [answer, complaint] :
       {std::pair{"<<<<<<< SEARCH\nint x = 1;\n", "edit 1 has no ======="},
        {"<<<<<<< SEARCH\nint x = 1;\n=======\nint x;\n", "edit 1 has no >>>>>>> REPLACE"},
        {"<<<<<<< SEARCH\nint x = 1;\n>>>>>>> REPLACE\n", "where ======= should stand"},
        {"I have no idea.\n", "neither"},
        {"```cpp\nint x;\n", "cut off"},
        {"```cpp\nint x;\n```\n", "EVOLVE-BLOCK-START"},
        {"", "neither"}}) {
    const AppliedAnswer a = apply_answer(answer, kParent);
    EXPECT_NE(a.why.find(complaint), std::string::npos) << answer << ": " << a.why;
  }
}

TEST(Edits, LineEndsOfOtherSystemsAndThoughtsAreDropped) {
  const AppliedAnswer a = apply_answer(
      "<think>\n<<<<<<< SEARCH\nnonsense\n</think>\n<<<<<<< SEARCH\r\nint x = 1;\r\n=======\r\nint "
      "x "
      "= 2;\r\n>>>>>>> REPLACE\r\n",
      kParent);
  ASSERT_TRUE(a.ok()) << a.why;
  EXPECT_EQ(a.text, replaced(kParent, "int x = 1;", "int x = 2;"));
}

TEST(Edits, BlocksReplaceThoseOfTheirNames) {
  const AppliedAnswer a = apply_answer(
      "```cpp\n// EVOLVE-BLOCK-START two\nint y = 5;\n// EVOLVE-BLOCK-END\n```\n"
      "```\nno block\n```\n",
      kParent);
  ASSERT_TRUE(a.ok()) << a.why;
  EXPECT_EQ(a.form, "blocks");
  EXPECT_EQ(a.text, replaced(kParent, "int y = 1;", "int y = 5;"));
}

TEST(Edits, BlocksThatAreNotThoseOfTheProgramAreRefused) {
  const std::string two = "// EVOLVE-BLOCK-START two\nint y = 5;\n// EVOLVE-BLOCK-END\n";
  for (const auto& [code, complaint] :
       {std::pair<std::string, const char*>{"```\n" + replaced(two, "two", "three") + "```\n",
                                            "no block 'three'"},
        {"```\n" + two + "```\n```\n" + two + "```\n", "twice"},
        {"```\n// EVOLVE-BLOCK-START two\nint y;\n```\n", "without EVOLVE-BLOCK-END"},
        {"```\n" + kParent + "```\n```\n" + two + "```\n", "whole program"}}) {
    const AppliedAnswer a = apply_answer(code, kParent);
    EXPECT_NE(a.why.find(complaint), std::string::npos) << a.why;
  }
}

// A program with more than its blocks is taken whole, so that other lines are seen to be changed.
TEST(Edits, WholeProgramsAreNotPickedApart) {
  const std::string other = replaced(kParent, "int before;", "int before = system();");
  const AppliedAnswer a = apply_answer("```cpp\n" + other + "```\n", kParent);
  ASSERT_TRUE(a.ok()) << a.why;
  EXPECT_EQ(a.form, "program");
  EXPECT_EQ(a.text, other);
}

TEST(Edits, FilesAreWholeProgramsOrEdits) {
  EXPECT_EQ(apply_file("int q;\n", kParent).text, "int q;\n");
  EXPECT_EQ(apply_file(edit("int y = 1;\n", "int y = 2;\n"), kParent).text,
            replaced(kParent, "int y = 1;", "int y = 2;"));
  EXPECT_FALSE(apply_file("", kParent).ok());
  EXPECT_FALSE(apply_file(std::string("int q;\n\0", 8), kParent).ok());
  EXPECT_FALSE(apply_file(std::string(1 << 20, 'x'), kParent).ok());
}

}  // namespace
}  // namespace attune::evolve
