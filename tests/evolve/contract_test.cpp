// Which contract a program has, and what joins it to candidate.h.
#include "evolve/compile/contract.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "evolve/compile/compiler_text.hpp"
#include "evolve/compile/host_compile.hpp"
#include "evolve/judge/arena_case.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

TEST(Contract, IsThatOfThePass) {
  const std::string forward = "int attune_candidate(const attune_candidate_call*) { return 0; }",
                    backward = "int attune_candidate_backward(const void*) { return 0; }",
                    both = forward + backward;
  EXPECT_EQ(contract_of(forward, Pass::forward), Contract::candidate);
  EXPECT_EQ(contract_of(forward, Pass::backward), Contract::none);
  EXPECT_EQ(contract_of(backward, Pass::forward), Contract::none);
  EXPECT_EQ(contract_of(backward, Pass::backward), Contract::backward);
  EXPECT_EQ(contract_of(both, Pass::forward), Contract::candidate);
  EXPECT_EQ(contract_of(both, Pass::backward), Contract::backward);
}

TEST(Contract, IsFoundInTheText) {
  const struct {
    const char* text;
    Contract contract;
  } kTexts[] = {
      {"", Contract::none},
      {"int main() {}", Contract::none},
      {"int attune_candidate(const attune_candidate_call* c) { return 0; }", Contract::candidate},
      {"extern \"C\" void run_attention(const float* Q) { }", Contract::run_attention},
      {"extern \"C\" {\nvoid\nrun_attention (\nint a,\nint b)\n{\n}\n}", Contract::run_attention},
      {"void run_attention(int (*f)(int), int x[4]) noexcept(true) {}", Contract::run_attention},
      {"void run_attention() __attribute__((hot)) {}", Contract::run_attention},
      {"void run_attention() try {} catch (...) {}", Contract::run_attention},
      {"void run_\\\nattention() {}", Contract::none},  // a name in two lines: nobody writes that
      {"int attune_candidate_backward(const attune_candidate_backward_call* c) { return 0; }",
       Contract::backward},
      {"int attune_candidate_backward(const void*) { return 0; } void run_attention() {}",
       Contract::run_attention},
      {"// attune_candidate_backward", Contract::none},
      // not a definition
      {"void run_attention(int a);", Contract::none},
      {"void f() { run_attention(1); }", Contract::none},
      {"void f() { if (run_attention(1)) { } }", Contract::none},
      {"void X::run_attention(int a) { }", Contract::none},
      {"void run_attention_fast(int a) { }", Contract::none},
      {"void my_run_attention(int a) { }", Contract::none},
      // comments, strings, directives
      {"// void run_attention() {}\n", Contract::none},
      {"// a \\\nvoid run_attention() {}\n", Contract::none},
      {"/* void run_attention() {} */", Contract::none},
      {"const char* s = \"void run_attention() {}\";", Contract::none},
      {"const char* s = \"\\\" void run_attention() {}\";", Contract::none},
      {"const char* s = R\"(void run_attention() {} \")\";", Contract::none},
      {"const char* s = u8R\"x(\" )\" void run_attention() {})x\";", Contract::none},
      {"#define DEFINE void run_attention() {}\n", Contract::none},
      {"#define DEFINE(x) \\\n void run_attention() {}\n", Contract::none},
      {"int n = 1'000'000; char c = '\"'; void run_attention() {} // \"", Contract::run_attention},
      {"char c = '\\''; void run_attention() {} char d = '\\'';", Contract::run_attention},
      {"#include <x>\nvoid run_attention() {}", Contract::run_attention},
      // both, and what a macro may define
      {"void run_attention() {} int attune_candidate(const void*) { run_attention(); return 0; }",
       Contract::candidate},
      {"#define ENTRY attune_candidate\nint ENTRY(const void*) { return 0; }", Contract::candidate},
      // damaged text
      {"void run_attention(", Contract::none},
      {"void run_attention() \"", Contract::none},
      {"/*", Contract::none},
      {"R\"", Contract::none},
      {"\\", Contract::none},
  };
  for (const auto& t : kTexts) EXPECT_EQ(contract_of(t.text), t.contract) << t.text;
}

TEST(Contract, ProgramsOfTheRepositoryHaveOne) {
  const auto read = [](const fs::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const fs::path root = source_dir();
  for (const char* folder :
       {"tests/evolve/cheats", "tests/evolve/candidates", "tests/evolve/cuda_cheats"})
    for (const auto& entry : fs::directory_iterator(root / folder))
      if (const auto kind = entry.path().extension(); kind == ".cpp" || kind == ".cu") {
        const bool backward = entry.path().stem().string().find("backward") != std::string::npos;
        EXPECT_EQ(contract_of(read(entry.path())),
                  backward ? Contract::backward : Contract::candidate)
            << entry.path();
      }
  for (const char* example :
       {"examples/cpu_attention/naive.cpp", "examples/cuda_attention/naive.cu"})
    EXPECT_EQ(contract_of(read(root / example)), Contract::run_attention) << example;
}

class ContractCompile : public testing::Test {
 protected:
  void SetUp() override {
    if (host_compiler().path.empty()) GTEST_SKIP() << host_compiler().why_not;
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Built build(const std::string& text) { return build_candidate(text, folder_, 60); }

  static std::string entry(
      const std::string& before = "extern \"C\" ",
      const std::string& arguments =
          "const float* Q, const float* K, const float* V, float* O, int batch, "
          "int heads, int seq_len, int head_dim, bool causal",
      const std::string& body = "O[0] = Q[0] + float(causal);") {
    return before + "void run_attention(" + arguments + ") { " + body + " }\n";
  }

  fs::path folder_ = fs::temp_directory_path() / ("attune-contract-" + std::to_string(getpid()));
};

TEST_F(ContractCompile, TheAdapterJoinsRunAttention) {
  for (const char* before :
       {"extern \"C\" ", "", "static ", "__attribute__((visibility(\"default\"))) extern \"C\" "}) {
    const Built built = build(entry(before));
    EXPECT_EQ(built.verdict, Verdict::ok) << before << ": " << built.why;
    EXPECT_EQ(built.contract, Contract::run_attention);
    EXPECT_TRUE(links_of(built.library).entry);
  }
  // A last line without an end, or a comment that a backslash continues.
  EXPECT_EQ(build(entry() + "// the end").verdict, Verdict::ok);
  EXPECT_EQ(build(entry() + "// the end \\").verdict, Verdict::ok);
}

TEST_F(ContractCompile, ErrorsHaveTheProgramsLines) {
  const Built built = build("\n\n" + entry("extern \"C\" ", "int a", "no_such_name = a;"));
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  const std::vector<TextError> errors = errors_by_line(built.why);
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors[0].line, 3) << built.why;
  EXPECT_GT(errors[0].column, 0) << built.why;
  EXPECT_NE(errors[0].message.find("no_such_name"), std::string::npos) << built.why;
  EXPECT_FALSE(errors[0].message.starts_with("error")) << built.why;
}

TEST_F(ContractCompile, OtherArgumentsAreNamed) {
  const Built built = build(entry("extern \"C\" ", "const float* Q, float* O, bool causal"));
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  EXPECT_NE(built.why.find("other arguments than its contract"), std::string::npos) << built.why;
  EXPECT_NE(built.why.find("int seq_len, int head_dim, bool causal"), std::string::npos);
}

TEST_F(ContractCompile, NoEntryPointNamesBothContracts) {
  const Built built = build("// void run_attention() {}\nint x;\n");
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  EXPECT_NE(built.why.find("run_attention(const float* Q"), std::string::npos) << built.why;
  EXPECT_NE(built.why.find("attune_candidate"), std::string::npos) << built.why;
  EXPECT_EQ(build("int main() { return 0; }").why, built.why);
  // What the compiler says comes first.
  EXPECT_NE(build("int x = y;").why.find("candidate.cpp:1:9"), std::string::npos);
}

TEST(ContractErrors, AreReadLineByLine) {
  const std::vector<TextError> errors = errors_by_line(
      "candidate.cpp:12:5: error: 'x' was not declared\n"
      "candidate.cu(7): error: identifier \"y\" is undefined\n"
      "candidate.cpp:1:10: fatal error: nothing.h: No such file\n"
      "undefined reference to `f'");
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(errors[0].line, 12);
  EXPECT_EQ(errors[0].column, 5);
  EXPECT_EQ(errors[0].message, "'x' was not declared");
  EXPECT_EQ(errors[1].line, 7);
  EXPECT_EQ(errors[1].column, 0);
  EXPECT_EQ(errors[1].message, "identifier \"y\" is undefined");
  EXPECT_EQ(errors[2].message, "nothing.h: No such file");
  EXPECT_EQ(errors[3].line, 0);
  EXPECT_EQ(errors[3].message, "undefined reference to `f'");
  EXPECT_TRUE(errors_by_line("").empty());
}

// ---- What such programs are asked for ----

Problem timed(DType dtype) {
  Problem p;
  p.dtype = dtype;
  p.batch = 1;
  p.heads_q = p.heads_kv = 4;
  p.seq_q = p.seq_k = 200;
  p.dim = p.dim_v = 64;
  return p;
}

TEST(ContractCases, StayInTheContract) {
  Dice dice(7, 0);
  for (const Language language : {Language::cpp, Language::cuda}) {
    const Problem p = timed(language == Language::cuda ? DType::f16 : DType::f32);
    for (int n = 0; n < 50; ++n)
      for (const auto& cases : {small_cases(p, Contract::run_attention, &dice),
                                large_cases(p, Contract::run_attention, &dice)}) {
        EXPECT_GE(cases.size(), 7u);
        for (const check::Case& c : cases)
          EXPECT_TRUE(in_contract(c, Contract::run_attention, language)) << c.name();
      }
  }
}

TEST(ContractCases, CoverManySizes) {
  Dice dice(8, 0);
  for (int n = 0; n < 20; ++n) {
    std::set<int64_t> lengths, dims, batches;
    std::set<check::Fill> fills;
    int causal = 0, full = 0, odd = 0;
    for (const check::Case& c : small_cases(timed(DType::f32), Contract::run_attention, &dice)) {
      lengths.insert(c.problem.seq_q);
      dims.insert(c.problem.dim);
      batches.insert(c.problem.batch);
      fills.insert(c.fill);
      (c.problem.causal ? causal : full) += 1;
      odd += c.problem.seq_q % 2 != 0;
    }
    EXPECT_GE(lengths.size(), 11u);
    EXPECT_GE(odd, 6);
    EXPECT_GE(dims.size(), 2u);
    EXPECT_GE(batches.size(), 2u);
    EXPECT_EQ(fills.size(), 5u);
    EXPECT_GE(causal, 5);
    EXPECT_GE(full, 5);
  }
}

TEST(ContractCases, OthersAreAskedForMore) {
  Dice dice(9, 0);
  int more = 0;
  for (const check::Case& c : small_cases(timed(DType::f32), Contract::candidate, &dice))
    more += !in_contract(c, Contract::run_attention, Language::cpp);
  EXPECT_GT(more, 5);
}

TEST(ContractCases, NamesWhatIsBeyond) {
  EXPECT_EQ(beyond_run_attention(timed(DType::f32), Language::cpp), nullptr);
  EXPECT_NE(beyond_run_attention(timed(DType::f32), Language::cuda), nullptr);
  EXPECT_EQ(beyond_run_attention(timed(DType::f16), Language::cuda), nullptr);
  Problem p = timed(DType::f32);
  p.heads_q = 8;
  EXPECT_STREQ(beyond_run_attention(p, Language::cpp), "two numbers of heads");
  p = timed(DType::f32);
  p.softcap = true;
  EXPECT_STREQ(beyond_run_attention(p, Language::cpp), "a softcap");
}

}  // namespace
}  // namespace attune::evolve
