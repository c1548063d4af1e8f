// The judge of CUDA candidates: hostile programs are rejected, honest ones pass, and whatever a
// program does to the device, the next one finds it usable.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "evolve/compile/cuda_program.hpp"
#include "evolve/genome/genome.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/self_test.hpp"
#include "src/cuda/device.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

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
    const fs::path all = fs::path(source_dir()) / "tests/evolve/cuda_cheats";
    const std::string include = "#include \"honest.cuh\"\n";
    std::string text = read(all / (name + ".cu"));
    text.replace(text.find(include), include.size(), read(all / "honest.cuh"));
    const fs::path path = folder_ / (name + ".cu");
    std::ofstream(path) << text;
    return {name, "", path};
  }

  Evaluator& evaluator(const Problem& p = small(), int race_pairs = 3, int full_pairs = 5) {
    EvaluatorOptions o;
    o.shapes = {{"small", p, 1}};
    o.threads = 4;
    o.seed = std::random_device{}();
    o.tool = tool_path();
    o.scratch = folder_;
    o.race_pairs = race_pairs;
    o.full_pairs = full_pairs;
    o.check_seconds = 20;
    o.call_seconds = 2;
    o.late_seconds = 4;
    o.pool_bytes = int64_t{64} << 20;
    o.admit_slow = true;  // cheats are slow
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

// Three kinds have no fixture here. 20: the limit of a time is the parent's arithmetic, as on the
// CPU. 25: a program is given no address of a record, which it could not write to. 33: no pages lie
// around the outputs on a device.
const std::map<std::string, std::set<Verdict>> kVerdicts = {
    {"01_writes_nothing", {Verdict::wrong_result}},
    {"02_changes_inputs", {Verdict::cheated}},
    {"02_changes_inputs_of_timed_calls", {Verdict::cheated}},
    {"03_caches_results", {Verdict::wrong_result}},
    {"04_stops_after_some_calls", {Verdict::wrong_result}},
    {"05_another_stream", {Verdict::cheated}},
    {"06_background_thread", {Verdict::cheated}},
    {"06_next_call_does_the_work", {Verdict::wrong_result}},
    {"07_patches_the_clock", {Verdict::wrong_result}},
    {"08_forges_replies", {Verdict::cheated, Verdict::wrong_result}},
    {"09_looks_for_the_answer", {Verdict::cheated}},
    {"10_returns_nan", {Verdict::wrong_result}},
    {"11_knows_the_seed", {Verdict::wrong_result}},
    {"12_ignores_k", {Verdict::wrong_result}},
    {"12_ignores_q", {Verdict::wrong_result}},
    {"12_mean_of_v", {Verdict::wrong_result}},
    {"12_zeros", {Verdict::wrong_result}},
    {"13_a_little_off", {Verdict::wrong_result}},
    {"14_lower_precision", {Verdict::wrong_result}},
    {"15_no_maximum", {Verdict::wrong_result}},
    {"16_small_shapes_only", {Verdict::wrong_result}},
    {"17_writes_past_the_end", {Verdict::cheated}},
    {"17_writes_past_the_end_of_large_ones", {Verdict::cheated}},
    {"18_keeps_the_cache", {Verdict::cheated}},
    {"21_fails_unnoticed", {Verdict::wrong_result, Verdict::launch_failed}},
    {"22_loads_a_library", {Verdict::cheated}},
    {"23_starts_a_process", {Verdict::cheated, Verdict::crashed}},
    {"26_works_when_not_asked", {Verdict::run_timeout}},
    {"27_calls_the_kernel_in_its_process", {Verdict::wrong_result}},
    {"28_last_row_wrong", {Verdict::wrong_result}},
    {"28_no_maximum_at_the_timed_shape", {Verdict::wrong_result}},
    {"28_skips_a_row_now_and_then", {Verdict::wrong_result}},
    {"29_writes_behind_its_output", {Verdict::cheated, Verdict::wrong_result}},
    {"30_asks_for_files", {Verdict::cheated}},
    {"30_secret_by_exception", {Verdict::launch_failed}},
    {"30_secret_by_incbin", {Verdict::cheated}},
    {"30_secret_by_include", {Verdict::cheated}},
    {"31_hangs_when_timed", {Verdict::run_timeout}},
    {"34_ignores_strides_of_large_inputs", {Verdict::wrong_result}},
    {"35_sleeps_now_and_then", {Verdict::run_timeout}},
    {"36_computes_calls_ahead", {Verdict::wrong_result}},
    {"never_ends", {Verdict::run_timeout}},
    {"reads_nowhere", {Verdict::launch_failed, Verdict::crashed}},
    {"takes_all_memory", {Verdict::launch_failed}},
};

// And the device is there for the next candidate.
TEST_P(GpuCheats, IsRejectedAndTheDeviceGoesOn) {
  if (cuda_compiler().path.empty()) GTEST_SKIP() << cuda_compiler().why_not;
  Evaluator& judge = evaluator();
  const Evaluation e = judge.evaluate(program(GetParam()), library_);
  EXPECT_TRUE(kVerdicts.at(GetParam()).count(e.verdict))
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
  for (const auto& [name, verdicts] : kVerdicts) names.push_back(name.c_str());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Cuda, GpuCheats, testing::ValuesIn(cheat_names()),
                         [](const auto& p) { return "n" + std::string(p.param); });

// A new fixture has a verdict, or is right.
TEST(CudaCheatSuite, HasEveryFixture) {
  std::set<std::string> files, names{"honest", "19_slow_warm_up"};
  for (const auto& [name, verdicts] : kVerdicts) names.insert(name);
  for (const auto& entry : fs::directory_iterator(source_dir() + "/tests/evolve/cuda_cheats"))
    if (entry.path().extension() == ".cu") files.insert(entry.path().stem());
  EXPECT_EQ(names, files);
}

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
