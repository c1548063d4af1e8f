// A CUDA program becomes a shared object without a GPU; what it may link, the judge decides.
#include "evolve/compile/cuda_program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "evolve/compile/compiler_text.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

class FullCudaProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_compiler().path.empty()) GTEST_SKIP() << cuda_compiler().why_not;
    folder_ = fs::temp_directory_path() / ("attune-cuda-program-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  static std::string fixture(const std::string& name) {
    const fs::path all = fs::path(source_dir()) / "tests/evolve/cuda_cheats";
    const auto read = [](const fs::path& path) {
      std::ifstream file(path);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string include = "#include \"honest.cuh\"\n";
    std::string text = read(all / (name + ".cu"));
    return text.replace(text.find(include), include.size(), read(all / "honest.cuh"));
  }

  Built build(const std::string& source, const Stop& stop = {}) const {
    return build_cuda_program(source, 90, folder_, 120, stop);
  }

  fs::path folder_;
};

// Every fixture is a program that nvcc takes, so that a GPU refuses it for what it does. These are
// refused before.
const std::map<std::string, Verdict> kNotBuilt = {
    {"06_background_thread", Verdict::cheated}, {"09_looks_for_the_answer", Verdict::cheated},
    {"22_loads_a_library", Verdict::cheated},   {"30_asks_for_files", Verdict::cheated},
    {"30_secret_by_incbin", Verdict::cheated},  {"30_secret_by_include", Verdict::cheated},
};

class FullCudaFixtures : public FullCudaProgram, public testing::WithParamInterface<std::string> {};

TEST_P(FullCudaFixtures, AreBuilt) {
  const auto refused = kNotBuilt.find(GetParam());
  const Built built = build(fixture(GetParam()));
  EXPECT_EQ(built.verdict, refused == kNotBuilt.end() ? Verdict::ok : refused->second) << built.why;
}

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(source_dir() + "/tests/evolve/cuda_cheats"))
    if (entry.path().extension() == ".cu") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Cuda, FullCudaFixtures, testing::ValuesIn(fixtures()),
                         [](const auto& p) { return "n" + p.param; });

TEST_F(FullCudaProgram, AnHonestOneIsBuilt) {
  const Built built = build(fixture("honest"));
  EXPECT_EQ(built.verdict, Verdict::ok) << built.why;
  EXPECT_TRUE(fs::exists(built.library));
  EXPECT_EQ(built.binary_hash.size(), 64u);
  EXPECT_EQ(build(fixture("honest")).binary_hash, built.binary_hash);
}

std::string example() {
  std::ifstream file(source_dir() + "/examples/cuda_attention/naive.cu");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(FullCudaProgram, DeclaredFlagsActAndAreRecorded) {
  const std::string text = fixture("honest");
  const Built plain = build(text), few = build(text + "// attune-flags: -maxrregcount=16\n");
  ASSERT_EQ(plain.verdict, Verdict::ok) << plain.why;
  ASSERT_EQ(few.verdict, Verdict::ok) << few.why;
  ASSERT_FALSE(plain.kernels.empty());
  EXPECT_NE(plain.binary_hash, few.binary_hash);
  for (const KernelUse& k : few.kernels) EXPECT_LE(k.registers, 16 + 8) << k.name;
}

TEST_F(FullCudaProgram, RunAttentionIsBuiltWithItsAdapter) {
  const Built built = build(example());
  EXPECT_EQ(built.verdict, Verdict::ok) << built.why;
  EXPECT_EQ(built.contract, Contract::run_attention);
  EXPECT_TRUE(links_of(built.library).entry);
}

TEST_F(FullCudaProgram, RunAttentionWithOtherArgumentsIsNot) {
  std::string text = example();
  const std::string entry = "extern \"C\" void run_attention(const half* Q";
  text.replace(text.find(entry), entry.size(), "extern \"C\" void run_attention(half* Q");
  const Built built = build(text);
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  EXPECT_NE(built.why.find("other arguments than its contract"), std::string::npos) << built.why;
}

TEST_F(FullCudaProgram, ErrorsHaveTheProgramsLines) {
  std::string text = example();
  text.insert(0, "\n\nint x = no_such_name;\n");
  const Built built = build(text);
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  const std::vector<TextError> errors = errors_by_line(built.why);
  ASSERT_FALSE(errors.empty()) << built.why;
  EXPECT_EQ(errors[0].line, 3) << built.why;
  EXPECT_NE(errors[0].message.find("no_such_name"), std::string::npos) << built.why;
}

TEST_F(FullCudaProgram, OneThatLoadsALibraryIsNot) {
  const Built built = build(fixture("22_loads_a_library"));
  EXPECT_EQ(built.verdict, Verdict::cheated);
  EXPECT_NE(built.why.find("dlopen"), std::string::npos) << built.why;
}

// The driver's threads call it, which the program's wall does not hold.
TEST_F(FullCudaProgram, OneThatIsCalledByOtherThreadsIsNot) {
  std::string text = fixture("honest");
  text += "\nextern \"C\" void later() { cudaLaunchHostFunc(0, [](void*) {}, nullptr); }\n";
  const Built built = build(text);
  EXPECT_EQ(built.verdict, Verdict::cheated);
  EXPECT_NE(built.why.find("cudaLaunchHostFunc"), std::string::npos) << built.why;
}

TEST_F(FullCudaProgram, ASecretStaysClosed) {
  const fs::path secret = folder_ / "secret";
  std::ofstream(secret) << "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI\n";
  const auto asked = [&](const std::string& before) {
    const Built built = build(before + fixture("honest"));
    EXPECT_NE(built.verdict, Verdict::ok) << before;
    EXPECT_EQ(built.why.find("AWS_SECRET"), std::string::npos) << built.why;
    EXPECT_EQ(built.why.find("wJalr"), std::string::npos) << built.why;
    return built;
  };
  EXPECT_EQ(asked("#include \"" + secret.string() + "\"\n").verdict, Verdict::cheated);
  EXPECT_EQ(asked("#include \"../secret\"\n").verdict, Verdict::cheated);
  if (landlock_abi() == 0) return;
  // The check of the text is deceived: the assembler's directive is made of two parts.
  const std::string disguised = "#define Q(x) #x\nasm(\".section .rodata\\n\" Q(.inc) \"bin \\\"" +
                                secret.string() + "\\\"\\n.text\");\n";
  EXPECT_EQ(asked(disguised).verdict, Verdict::compile_failed);
}

TEST(CudaProgram, RegistersAndSpillsAreReadFromPtxas) {
  const std::vector<KernelUse> found = kernels_of_ptxas(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function '_ZN1a9attentionILi3EEEvPK6__halfPS1_i' for "
      "'sm_90a'\n"
      "ptxas info    : Function properties for _ZN1a9attentionILi3EEEvPK6__halfPS1_i\n"
      "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 256 bytes smem\n"
      "ptxas info    : Compile time = 23.084 ms\n"
      "ptxas info    : Compiling entry function 'plain' for 'sm_90a'\n"
      "ptxas info    : Used 10 registers, used 0 barriers\n");
  EXPECT_EQ(found,
            (std::vector<KernelUse>{{"a::attention<3>", 255, 12, 8, 256}, {"plain", 10, 0, 0, 0}}));
  EXPECT_TRUE(kernels_of_ptxas("Used 10 registers\nnvcc: error").empty());
}

TEST_F(FullCudaProgram, TheCompilersWordsAreKept) {
  const Built built = build("#include \"candidate.h\"\n#error not today\n");
  EXPECT_EQ(built.verdict, Verdict::compile_failed);
  EXPECT_NE(built.why.find("not today"), std::string::npos) << built.why;
}

TEST_F(FullCudaProgram, AStopEndsTheCompiler) {
  const Built built = build(fixture("honest"), [] { return true; });
  EXPECT_NE(built.verdict, Verdict::ok);
  EXPECT_LT(built.seconds, 5);
}

}  // namespace
}  // namespace attune::evolve
