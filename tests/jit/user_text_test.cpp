#include "src/jit/user_text.hpp"

#include <gtest/gtest.h>

#include <string>

namespace attune::jit {
namespace {

TEST(UserText, BodiesPass) {
  for (const char* text : {
           "",
           "return score;",
           "if (i < j) { return 0.f; }\r\nreturn score;\r\n",
           "return \"}\"[0] + '}' + '\\'' + '\"' + \"\\\"}\"[1];",
           "return 1'000'000 + 0x1'f + 1.5e+3f + .5f;",
           "// } # { %: '\n/* } # { \n ' \" */ return score;",
           "return R\"(})\"[0] + u8R\"a(}\n#include <x>\n)\" )a\"[0] + LR\"(\")\"[0];",
           "return fooR + uR;",
           "#pragma unroll\nfor (int k = 0; k < 4; ++k) score += k;\nreturn score;",
           "  #  pragma  unroll 4 // four\nfor (;;) {}\n",
           "%:pragma unroll(2)\nfor (;;) <% %>\n",
           "return a<::b>(score) + x[0] % 3;",
           "return \xc3\xa9;  // \xe2\x82\xac",
           "auto f = [](float x) { return x; };\nreturn f(score);",
       })
    EXPECT_EQ(why_not_a_body(text), "") << text;
}

TEST(UserText, DirectivesAreRefusedWithTheirLine) {
  for (const char* text : {
           "#include \"/etc/passwd\"",
           "  #\t include <x>",
           "%:include \"x\"",
           "/* a */ # /* b */ include \"x\"",
           "#include_next <x>",
           "#import \"x\"",
           "#embed \"x\"",
           "#if __has_include(\"x\")",
           "#define score 1",
           "#undef assert",
           "#line 1 \"mask_mod\"",
           "# 1 \"mask_mod\"",
           "#error no",
           "#pragma once",
           "#pragma unrolled",
           "#pragma",
           "#",
           "x #",
           "_Pragma(\"unroll\")",
           "__pragma(unroll)",
           "return __has_include(\"/etc/passwd\");",
           "return __has_include_next(<x>) + __has_embed(\"x\");",
       }) {
    EXPECT_TRUE(why_not_a_body(text).starts_with("line 1: ")) << text;
    const std::string after = "int x; /*\n*/ \"\\n\";\n" + std::string(text) + "\nreturn score;";
    const std::string why = why_not_a_body(after);
    EXPECT_TRUE(why.starts_with("line 3: ")) << text << ": " << why;
    EXPECT_NE(why.find("#pragma unroll"), std::string::npos) << why;
  }
  EXPECT_NE(why_not_a_body("#include \"secret.h\"").find(": #include \"secret.h\""),
            std::string::npos);
}

// A directive behind what only looks like the inside of a literal or a comment.
TEST(UserText, NothingHidesADirective) {
  for (const char* text : {
           "// a comment \\\n\n#define x",
           "// a comment \\ \t\n#define x",
           "// a comment\r#define x",
           "int a = 1'0;\n#define x '",
           "R\"(a)\"\n#define x \")\"",
           "fooR\"(\"\n#define x \")\"",
           "\"\\\\\"\n#define x \"",
           "'\\''\n#define x '",
           "/**/\n#define x /**/",
           "/*/*/\n#define x /**/",
           "\"a\n#define x \"",
           "R\"a b(\n#define x )a b\"",
           "\\u0052\"(\"\n#define x \")\"",
           "#inclu\\\nde <x>",
           "return score; \\",
       })
    EXPECT_NE(why_not_a_body(text), "") << text;
}

TEST(UserText, TheFunctionIsNotLeft) {
  EXPECT_EQ(why_not_a_body("return score;\n}\nextern \"C\" __global__ void mine() {"),
            "line 2: a } closes the function itself");
  EXPECT_NE(why_not_a_body("%> void f() <%"), "");
  EXPECT_EQ(why_not_a_body("if (i) {\nreturn score;\n"), "line 3: a { has no }");
  EXPECT_EQ(why_not_a_body("return score; /* and so on"), "line 1: a comment has no end");
  EXPECT_EQ(why_not_a_body("\nreturn \"}"), "line 2: a \" has no second one on its line");
  EXPECT_EQ(why_not_a_body("return R\"(} )x\""), "line 1: a raw string has no end");
  EXPECT_NE(why_not_a_body("return R\"}"), "");
}

}  // namespace
}  // namespace attune::jit
