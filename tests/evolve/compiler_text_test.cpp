#include "evolve/compile/compiler_text.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace attune::evolve {
namespace {

TEST(AsksForFiles, FindsWhatLeadsOut) {
  const char* kSources[] = {
      "#include \"/etc/passwd\"\n",
      "#include </etc/passwd>\n",
      "  #  include\t\"/etc/passwd\"",
      "/* a */ # /* b\n c */ include /* d */ \"/etc/passwd\"\n",
      "#inc\\\nlude \"/etc/\\  \npasswd\"\n",
      "%:include \"/etc/passwd\"\n",
      "\xef\xbb\xbf#include \"/etc/passwd\"\n",
      "int x;\r#include \"/etc/passwd\"\r",
      "#include \"../secret\"\n",
      "#include \"a/../../secret\"\n",
      "#include \"..\"\n",
      "#include_next </etc/passwd>\n",
      "#import \"/etc/passwd\"\n",
      "const char x[] = {\n#embed \"/etc/passwd\"\n};\n",
      "#define P </etc/passwd>\n#include P\n",
      "#if __has_include(\"/etc/passwd\")\n#endif\n",
      "#if __has_include ( </etc/passwd> )\n#endif\n",
      "#if __has_include_next(</etc/passwd>)\n#endif\n",
      "#if __has_embed(\"/etc/passwd\")\n#endif\n",
      "#define P \"/etc/passwd\"\n#if __has_include(P)\n#endif\n",
      "#define ask(x) __has_include(x)\n",
      "#define ask __has_include\n",
      "#line 1 \"/etc/passwd\"\n",
      "# 1 \"/etc/passwd\"\n",
      "#pragma GCC dependency \"/etc/passwd\"\n",
      "#pragma GCC /**/ dependency \"/etc/passwd\"\n",
      "_Pragma(\"GCC  dependency \\\"/etc/passwd\\\"\")\n",
      "asm(\".incbin \\\"/etc/passwd\\\"\");\n",
      "asm(\".section x\\n.incbin \\\"/etc/passwd\\\"\");\n",
      "__asm__(\".inc\" \n \"bin \\\"/etc/passwd\\\"\");\n",
      "asm(\"\\x2eincbin \\\"/etc/passwd\\\"\");\n",
      "asm(\"\\056INCBIN \\\"/etc/passwd\\\"\");\n",
      "asm(\".include \\\"/etc/passwd\\\"\");\n",
  };
  for (const char* source : kSources) EXPECT_NE(asks_for_files(source), "") << source;
  EXPECT_NE(asks_for_files(std::string("#\0include \"/etc/passwd\"", 23)), "");
  EXPECT_EQ(asks_for_files("int x;\n#include \"/etc/passwd\"\n"), "/etc/passwd");
}

TEST(AsksForFiles, LeavesPlainProgramsAlone) {
  const char* kSources[] = {
      "",
      "#",
      "#include",
      "#include <vector>\n#include \"candidate.h\"\n",
      "// as in #include \"/etc/passwd\"\n",
      "// #includes are few\nint x;\n",
      "#ifdef __has_include\n#if __has_include(<immintrin.h>)\n#include "
      "<immintrin.h>\n#endif\n#endif\n",
      "#if defined(__has_include) && __has_include(\"candidate.h\")\n#endif\n",
      "#define A(x) #x\n#define B(a, b) a##b\n#pragma GCC optimize(\"O3\")\n#line 7\n",
      "int dependency; // GCC: no dependency\n",
      "asm volatile(\"vaddps %0, %1\\n\\t\" \"nop\" : : \"x\"(a), \"x\"(b));\n",
      "struct S { int include; } s; int i = s.include; asm(\"nop\");\n",
      "const char* dots = \"...\"; float a = b / c; float d = b /c;\n",
  };
  for (const char* source : kSources) EXPECT_EQ(asks_for_files(source), "") << source;
  // Texts that end anywhere.
  const std::string whole =
      "/* # */ #include \"/x\"\\\n#if __has_include(</y>)\nasm(\".inc\" \"bin\\x2e\");";
  for (size_t n = 0; n <= whole.size(); ++n) asks_for_files(whole.substr(0, n));
}

TEST(AssemblyAsksForFiles, FindsDirectivesOutsideOfStrings) {
  for (const char* text :
       {".incbin \"x\"", "\tnop; .INCBIN \"x\"\n", "a: .include \"x\"\n", ".macro m a b\n",
        ".irp a,x\n", ".string \"x\"; .incbin \"x\"\n", ".byte '\" ; .incbin \"x\"\n", ".mri 1\n"})
    EXPECT_NE(assembly_asks_for_files(text), "") << text;
  for (const char* text : {"\t.string \"a .incbin \\\" b\"\n", "\t.ascii \".include\" \n",
                           "\tcall\tf.incbins\n", "\t.text\n\tret\n", "x.include:\n", ""})
    EXPECT_EQ(assembly_asks_for_files(text), "") << text;
}

TEST(Printable, KeepsTextAlone) {
  EXPECT_EQ(printable("plain\ttext\n", 100), "plain text\n");
  EXPECT_EQ(printable("\x1b[31;1mred\x1b[0m \x1b]0;title\x07rest\x07\x7f\r", 100), "red rest");
  EXPECT_EQ(printable("a\xc2\x9b"
                      "b\xc3\xa9",
                      100),
            "ab\xc3\xa9");
  EXPECT_EQ(printable("\xc3\xa9\xc3\xa9", 3), "\xc3\xa9");
  EXPECT_EQ(printable("\x1b", 3), "");
  EXPECT_EQ(printable("\x1b[", 3), "");
}

TEST(OwnErrors, KeepsWhatTheProgramDidAndNothingElse) {
  const HostCompiler compiler{"/opt/tool/bin/x86_64-g++", "", "", {"/opt/tool"}};
  const auto errors = [&](const std::string& output) {
    return own_errors(output, {"candidate.cpp", "candidate.h"}, compiler, "/scratch/build");
  };
  EXPECT_EQ(errors("In file included from candidate.cpp:1:\n"
                   "/home/me/secret:1:1: error: 'KEY' does not name a type\n"
                   "    1 | KEY=abc\n"
                   "      | ^~~\n"
                   "candidate.cpp: In function 'int f()':\n"
                   "candidate.cpp:3:8: error: 'x' was not declared in this scope\n"
                   "    3 | return x;\n"),
            "candidate.cpp:3:8: error: 'x' was not declared in this scope");
  EXPECT_EQ(errors("./candidate.h:3:8: error: no\n"), "candidate.h:3:8: error: no");
  EXPECT_EQ(errors("/scratch/build/candidate.cpp:3:8: error: no\n"),
            "candidate.cpp:3:8: error: no");
  EXPECT_EQ(errors("candidate.cpp:1:10: fatal error: /home/me/secret: Permission denied\n"),
            "candidate.cpp:1:10: fatal error: (path): Permission denied");
  EXPECT_EQ(errors("/usr/include/c++/12/bits/x.h:3:8: error: static assertion failed: no\n"
                   "candidate.cpp:9:1:   required from here\n"),
            "/usr/include/c++/12/bits/x.h:3:8: error: static assertion failed: no\n"
            "candidate.cpp:9:1:   required from here");
  EXPECT_EQ(errors("/opt/tool/include/x.h:1:1: error: a / b\n"),
            "/opt/tool/include/x.h:1:1: error: a / b");
  EXPECT_EQ(errors("/usr/../home/me/secret:1:1: error: KEY\n"),
            "the compiler failed, and says nothing of the program's own text");
  EXPECT_EQ(errors("/usr/bin/ld: /tmp/ccX.o: in function `f':\n"
                   "candidate.cpp:(.text+0x5): undefined reference to `elsewhere'\n"
                   "collect2: error: ld returned 1 exit status\n"),
            "undefined reference to `elsewhere'\ncollect2: error: ld returned 1 exit status");
  EXPECT_EQ(errors("ld.lld: error: undefined symbol: elsewhere\n>>> referenced by candidate.cpp\n"),
            "undefined symbol: elsewhere");
  EXPECT_EQ(errors("cc1plus: out of memory allocating 65536 bytes\n"),
            "cc1plus: out of memory allocating 65536 bytes");
  EXPECT_EQ(errors("{standard input}:12: Error: no such instruction: `foo'\n"),
            "{standard input}:12: Error: no such instruction: `foo'");
  for (const char* reason : {"No such file or directory", "Permission denied"})
    for (const char* file : {"{standard input}", "candidate.s", "candidate.cpp"})
      EXPECT_EQ(errors(fmt::format("{}:1: Error: can't open x for reading: {}\n", file, reason)),
                fmt::format("{}:1: Error: can't open x for reading", file));
  EXPECT_EQ(errors("x86_64-g++: fatal error: Killed signal terminated program cc1plus\n"),
            "x86_64-g++: fatal error: Killed signal terminated program cc1plus");
  EXPECT_EQ(errors(""), "the compiler failed without a word");
  std::string long_one = "candidate.cpp:1:1: error: ";
  for (int n = 0; n < 5000; ++n) long_one += "x";
  EXPECT_LE(errors(long_one + "\n" + long_one + "\n" + long_one + "\n" + long_one).size(), 1500u);

  const HostCompiler nvcc{"/opt/tool/bin/nvcc", "", "", {"/opt/tool"}};
  EXPECT_EQ(own_errors("candidate.cu(7): error: identifier \"x\" is undefined\n\n"
                       "1 error detected in the compilation of \"candidate.cu\".\n"
                       "ptxas error   : Entry function 'k' uses too much shared data\n"
                       "ptxas /scratch/build/tmpxft.ptx, line 22; error   : Unknown symbol 'y'\n",
                       {"candidate.cu"}, nvcc, "/scratch/build"),
            "candidate.cu(7): error: identifier \"x\" is undefined\n"
            "ptxas error   : Entry function 'k' uses too much shared data\n"
            "ptxas tmpxft.ptx, line 22; error   : Unknown symbol 'y'");
}

}  // namespace
}  // namespace attune::evolve
