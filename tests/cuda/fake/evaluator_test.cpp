// CUDA programs are compiled ahead of their evaluation: by a compiler that only waits and fails,
// and on a driver without a GPU.
#include "evolve/judge/evaluator.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "evolve/judge/cheat_suite.hpp"
#include "evolve/worker/process.hpp"
#include "src/cpu/pool.hpp"
#include "src/cuda/device.hpp"
#include "tests/cuda/fake/load.hpp"
#include "tests/jit/compiler.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

// When each build began and ended is in its folder.
constexpr const char* kNvcc = R"(#!/bin/sh
case "$*" in
  *candidate.cu*) date +%s%N >> began; sleep SECONDS; date +%s%N >> ended; exit 1;;
esac
echo "Cuda compilation tools, release 13.0, V13.0.0"
)";

struct Span {
  double begin = 0, end = 0;
};

class FakeCudaEvaluator : public testing::Test {
 protected:
  void SetUp() override {
    cuda::fake_books();
    ATTUNE_NEEDS_NVRTC();  // the kernels that compare results are real
    ASSERT_EQ(cuda::why_unusable(), "");
    // The compiler of a process is looked for once.
    static const fs::path home =
        fs::temp_directory_path() / ("attune-fake-nvcc-" + std::to_string(getpid()));
    home_ = home;
    setenv("CUDA_HOME", home_.c_str(), 1);
    fs::create_directories(home_ / "bin");
    folder_ = home_ / "run";
    fs::create_directories(folder_);
    EvaluatorOptions options = cuda_cheat_options("/nonexistent/attune", folder_ / "scratch");
    options.programs = folder_;
    options.pool_bytes = int64_t{8} << 20;
    write_nvcc("0.4");
    judge_ = cuda_evaluator(options, 0);
  }
  void TearDown() override {
    judge_.reset();
    if (!home_.empty()) fs::remove_all(home_);
  }

  void write_nvcc(const std::string& seconds) const {
    std::string text = kNvcc;
    text.replace(text.find("SECONDS"), 7, seconds);
    const fs::path path = home_ / "bin" / "nvcc";
    std::ofstream(path) << text;
    fs::permissions(path, fs::perms::owner_all);
  }

  Candidate program(int n) const {
    const std::string name = fmt::format("p{}.cu", n);
    std::ofstream(folder_ / name) << "// " << n << "\n" << cuda_fixture_text("honest");
    return {name, "", name};
  }

  // One for each build.
  std::vector<Span> builds() const {
    std::vector<Span> all;
    std::error_code none;  // before the first build there is no folder
    for (const auto& entry : fs::directory_iterator(folder_ / "scratch", none)) {
      std::ifstream began(entry.path() / "began"), ended(entry.path() / "ended");
      for (Span s; began >> s.begin;) {
        if (!(ended >> s.end)) s.end = INFINITY;
        all.push_back(s);
      }
    }
    return all;
  }

  static int most_at_once(const std::vector<Span>& all) {
    int most = 0;
    for (const Span& a : all)
      most = std::max(most, int(std::count_if(all.begin(), all.end(), [&](const Span& b) {
                        return b.begin <= a.begin && a.begin < b.end;
                      })));
    return most;
  }

  fs::path home_, folder_;
  std::unique_ptr<Evaluator> judge_;
};

TEST_F(FakeCudaEvaluator, ProgramsAreCompiledAheadOnAllProcessors) {
  const int processors = cpu::usable_threads(), count = std::min(2 * processors, 8);
  std::vector<Candidate> all;
  for (int n = 0; n < count; ++n) all.push_back(program(n));
  for (const Candidate& c : all) judge_->prefetch(c);
  for (const Candidate& c : all) {
    const Evaluation e = judge_->evaluate(c, all[0]);
    EXPECT_EQ(e.verdict, Verdict::compile_failed) << e.why;
    EXPECT_GE(e.compile_seconds, 0.4);
  }
  const std::vector<Span> spans = builds();
  EXPECT_EQ(int(spans.size()), count) << "each text is compiled once";
  EXPECT_LE(most_at_once(spans), processors);
  if (processors > 1) {
    EXPECT_GE(most_at_once(spans), 2);
  }
}

TEST_F(FakeCudaEvaluator, SettlingEndsWhatIsBeingCompiled) {
  write_nvcc("60");
  const Candidate slow = program(0);
  judge_->prefetch(slow);
  const double begin = monotonic_seconds();
  while (builds().empty() && monotonic_seconds() - begin < 20) usleep(10000);
  ASSERT_EQ(builds().size(), 1u);
  judge_->settle();
  EXPECT_LT(monotonic_seconds() - begin, 15) << "its limit is 20 s, and it takes 60";
  write_nvcc("0");
  const Evaluation e = judge_->evaluate(slow, slow);  // what was given up is compiled anew
  EXPECT_EQ(e.verdict, Verdict::compile_failed) << e.why;
  EXPECT_EQ(builds().size(), 2u);
}

}  // namespace
}  // namespace attune::evolve
