#include "evolve/compile/flags.hpp"

#include <gtest/gtest.h>

namespace attune::evolve {
namespace {

std::string refused(const std::string& flags, Language language = Language::cpp) {
  std::string first;
  flags_of("int x;\n// attune-flags: " + flags + "\n", language, &first);
  return first;
}

TEST(Flags, AreReadFromTheirComment) {
  std::string first;
  EXPECT_EQ(flags_of("int x;\n// attune-flags: -O2  -DTILE=64\n", Language::cpp, &first),
            (std::vector<std::string>{"-O2", "-DTILE=64"}));
  EXPECT_EQ(first, "");
  EXPECT_TRUE(flags_of("int x;  // attune-flags: -O2\n", Language::cpp, &first).empty());
  EXPECT_TRUE(flags_of("", Language::cpp, &first).empty());
}

TEST(Flags, TheCommentGoesAndComes) {
  const std::string text = "int x;\n";
  EXPECT_EQ(without_flags_comment(text + flags_comment("-O2")), text);
  EXPECT_EQ(flags_comment(""), "");
  EXPECT_EQ(without_flags_comment(text), text);
  // It is the last line or it belongs to the program.
  EXPECT_EQ(without_flags_comment("// attune-flags: -O2\nint x;\n"),
            "// attune-flags: -O2\nint x;\n");
}

// Nothing that names a file, a tool or a linker's argument, or changes the process.
TEST(Flags, OnlyWhatChangesCodeIsAllowed) {
  for (const char* flag : {"-ffast-math",
                           "-Ofast",
                           "-fplugin=x.so",
                           "-B/tmp",
                           "-I/etc",
                           "-include",
                           "/etc/passwd",
                           "@f",
                           "-Wl,-rpath,/tmp",
                           "-o",
                           "-x",
                           "-specs=x",
                           "-wrapper",
                           "-lm",
                           "-L.",
                           "-save-temps",
                           "-D",
                           "-D1=2",
                           "-DX=a/b",
                           "-DX=$(ls)",
                           "-DX=\"a\"",
                           "-DX=`ls`",
                           "-march=native",
                           "-O3;ls"})
    EXPECT_EQ(refused(flag), flag);
  EXPECT_EQ(refused("-O2 -include x -DA=1"), "-include") << "the first is named";
  for (const char* flag : {"-DX", "-DX=", "-DX=1.5e-3", "-D_Y2=abc"}) EXPECT_EQ(refused(flag), "");
  EXPECT_EQ(refused("-O2", Language::cuda), "-O2");
  EXPECT_EQ(refused("-DX=1", Language::cuda), "");
}

TEST(Flags, OfCudaWhatChangesKernelsIsAllowed) {
  for (const char* flag : {"-maxrregcount=64", "-maxrregcount=255", "-use_fast_math", "-ftz=true",
                           "-prec-div=false", "-fmad=false", "-extra-device-vectorization"})
    EXPECT_EQ(refused(flag, Language::cuda), "") << flag;
  for (const char* flag :
       {"-maxrregcount=8", "-maxrregcount=256", "-maxrregcount=064", "-maxrregcount=64;ls",
        "-maxrregcount=", "-Xcompiler=-fplugin=x", "-Xptxas=-v", "-ccbin=/tmp/x", "-ftz=maybe",
        "--options-file=x", "-I/etc", "-optf=x", "-ldir=x", "-funroll-loops"})
    EXPECT_EQ(refused(flag, Language::cuda), flag);
  EXPECT_EQ(refused("-maxrregcount=64"), "-maxrregcount=64") << "of C++";
}

TEST(Flags, EveryChoiceIsAllowed) {
  for (const FlagChoice& choice : host_flag_choices()) {
    ASSERT_FALSE(choice.values.empty());
    EXPECT_EQ(choice.values[0].flags, "") << choice.name << ": the first has none";
    for (const FlagChoice::Value& value : choice.values) EXPECT_EQ(refused(value.flags), "");
  }
}

}  // namespace
}  // namespace attune::evolve
