// The judge of CUDA candidates: hostile programs are rejected, honest ones pass, and whatever a
// program does to the device, the next one finds it usable.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "evolve/compile/cuda_program.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/judge/cheat_suite.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/self_test.hpp"
#include "src/cuda/device.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

Problem small(DType dtype = DType::f16) {
  Problem p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = p.heads_kv = 16;
  p.seq_q = p.seq_k = 512;
  p.dim = p.dim_v = 64;
  return p;
}

class GpuEvaluator : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!cuda::why_unusable().empty()) GTEST_SKIP() << cuda::why_unusable();
    folder_ = fs::temp_directory_path() / ("attune-gpu-evaluator-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    ASSERT_TRUE(cuda::device(0, &device_).ok());
  }
  void TearDown() override {
    evaluator_.reset();
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  // A candidate is one file: what the cheats share is put into each.
  Candidate program(const std::string& name) const {
    const fs::path path = folder_ / (name + ".cu");
    std::ofstream(path) << cuda_fixture_text(name);
    return {name, "", path};
  }

  Evaluator& evaluator(const Problem& p = small(), int race_pairs = 3, int full_pairs = 5) {
    EvaluatorOptions o = cuda_cheat_options(tool_path(), folder_);
    o.shapes = {{"small", p, 1}};
    o.race_pairs = race_pairs;
    o.full_pairs = full_pairs;
    const auto space = cuda_space({p}, device_.arch);
    library_ = typed(space->print(space->library_default()));
    evaluator_ = cuda_evaluator(o, 0);
    return *evaluator_;
  }
  static Candidate typed(const std::string& config) { return {config, config, ""}; }

  fs::path folder_;
  cuda::Device device_;
  Candidate library_;
  std::unique_ptr<Evaluator> evaluator_;
};

using GpuCheats = GpuEvaluator;

// And the device is there for the next candidate.
TEST_P(GpuCheats, IsRejectedAndTheDeviceGoesOn) {
  if (cuda_compiler().path.empty()) GTEST_SKIP() << cuda_compiler().why_not;
  const std::vector<Fixture>& all = cuda_cheat_suite();
  const auto fixture =
      std::find_if(all.begin(), all.end(), [](const Fixture& f) { return f.name == GetParam(); });
  Problem timed = small();
  if (fixture->batch > 0) timed.batch = fixture->batch;
  Evaluator& judge = evaluator(timed);
  const Evaluation e = judge.evaluate(program(GetParam()), library_);
  EXPECT_TRUE(fixture->expects(e.verdict))
      << verdict_name(e.verdict) << " at " << stage_name(e.stage) << ": " << e.why;
  EXPECT_FALSE(e.why.empty());
  EXPECT_EQ(e.why.find("attune-secret"), std::string::npos) << e.why;
  const auto space = cuda_space({small()}, device_.arch);
  const Evaluation next = judge.evaluate(
      typed(space->print(space->canonical({space->family_named("fused"), {}}))), library_);
  EXPECT_EQ(next.verdict, Verdict::ok) << next.why;
}

std::vector<const char*> cheat_names() {
  std::vector<const char*> names;
  for (const Fixture& f : cuda_cheat_suite())
    if (!f.honest()) names.push_back(f.name.c_str());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Cuda, GpuCheats, testing::ValuesIn(cheat_names()),
                         [](const auto& p) { return "n" + std::string(p.param); });

// 19: the number of samples is fixed, whatever the first calls take.
TEST_F(GpuEvaluator, ASlowWarmUpBuysNoFewerSamples) {
  if (cuda_compiler().path.empty()) GTEST_SKIP() << cuda_compiler().why_not;
  const Evaluation e = evaluator().evaluate(program("19_slow_warm_up"), library_);
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  ASSERT_EQ(e.shapes.size(), 1u);
  EXPECT_GE(e.shapes[0].candidate.size(), 3u);
}

TEST_F(GpuEvaluator, TheHonestProgramPasses) {
  if (cuda_compiler().path.empty()) GTEST_SKIP() << cuda_compiler().why_not;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Evaluator& judge = evaluator(small(dtype));
    const Evaluation e = judge.evaluate(program("honest"), library_);
    EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
    EXPECT_GE(e.stage, Stage::race);
    EXPECT_LT(e.speedup.high, 1) << "one thread a row is not faster than tensor cores";
    EXPECT_LE(e.error, e.limit);
  }
}

TEST_F(GpuEvaluator, EveryRungPassesAndTensorCoresAreFaster) {
  Evaluator& judge = evaluator();
  const auto space = cuda_space({small()}, device_.arch);
  for (const Family& f : space->families()) {
    const int family = space->family_named(f.name);
    const std::string id = space->print(space->canonical({family, {}}));
    const Evaluation e = judge.evaluate(typed(id), library_);
    EXPECT_EQ(e.verdict, Verdict::ok) << id << ": " << e.why;
    EXPECT_FALSE(e.binary_hash.empty());
  }
  const std::string naive = space->print(space->start());
  const Evaluation e = judge.evaluate(library_, typed(naive));
  EXPECT_GT(e.speedup.low, 2) << "over " << naive;
}

// 24: what differs by its name only is the same candidate.
TEST_F(GpuEvaluator, TheSameBinaryIsNoNewCandidate) {
  if (cuda_compiler().path.empty()) GTEST_SKIP() << cuda_compiler().why_not;
  Evaluator& judge = evaluator();
  Candidate first = program("honest"), second = first;
  second.id = "honest, once more";
  EXPECT_EQ(judge.evaluate(first, library_).verdict, Verdict::ok);
  const Evaluation e = judge.evaluate(second, library_);
  EXPECT_EQ(e.same_as, "honest");
  EXPECT_NE(e.verdict, Verdict::ok);
}

TEST_F(GpuEvaluator, ACandidateAgainstItselfIsNoBetter) {
  Evaluator& judge = evaluator(small(), 5, 15);
  const SelfTest t = self_test(judge, library_, 12, [](const SelfTest&) { return true; });
  EXPECT_EQ(t.accepted, 0);
  EXPECT_EQ(t.failed, 0);
  EXPECT_TRUE(std::any_of(t.twins.begin(), t.twins.end(),
                          [](const Evaluation& e) { return e.stage == Stage::measure; }));
}

}  // namespace
}  // namespace attune::evolve
