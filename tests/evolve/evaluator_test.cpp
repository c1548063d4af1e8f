// The judge against every documented way to fool one: shared/CHEATS names them by number. What only
// a GPU can show is in the GPU tier.
#include "evolve/judge/evaluator.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "evolve/genome/genome.hpp"
#include "evolve/judge/cheat_suite.hpp"
#include "src/file.hpp"
#include "tests/evolve/worker_skip.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {

void PrintTo(const Fixture& fixture, std::ostream* out) { *out << fixture.name; }

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Problem small(DType dtype = DType::f32) {
  Problem p;
  p.dtype = dtype;
  p.batch = 1;
  p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_k = 192;
  p.dim = p.dim_v = 32;
  return p;
}

// What the library would run for the first shape.
std::string print_default(const EvaluatorOptions& o) {
  std::vector<Problem> problems;
  for (const TimedShape& s : o.shapes) problems.push_back(s.problem);
  const auto space = cpu_space(problems, this_cpu(o.threads));
  return space->print(space->library_default());
}

class Evaluators : public testing::Test {
 protected:
  void SetUp() override {
    ATTUNE_NEEDS_SANDBOX();
    folder_ = fs::temp_directory_path() / ("attune-evaluator-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  std::string cheat(const std::string& name) const { return program(name, fixture_text(name)); }

  std::string program(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / (name + ".cpp");
    std::ofstream(path) << text;
    return path;
  }

  EvaluatorOptions options() const { return cheat_options(tool_path(), folder_); }

  Evaluation judge(const std::string& name) { return judge_text(name, fixture_text(name)); }

  Evaluation judge_text(const std::string& name, const std::string& text) {
    evaluator_ = cpu_evaluator(options());
    return evaluator_->evaluate({name, "", program(name, text)}, naive_);
  }

  fs::path folder_;
  const Candidate naive_ = cheat_incumbent();
  std::unique_ptr<Evaluator> evaluator_;
};

using WorkerEvaluator = Evaluators;
using FullWorkerEvaluator = Evaluators;

class WorkerCheats : public Evaluators, public testing::WithParamInterface<Fixture> {};

TEST_P(WorkerCheats, IsRejected) {
  const Evaluation e = judge_fixture(GetParam(), options());
  EXPECT_TRUE(GetParam().expects(e.verdict))
      << verdict_name(e.verdict) << " at " << stage_name(e.stage) << ": " << e.why;
  EXPECT_FALSE(e.why.empty());
  EXPECT_EQ(e.why.find("attune-secret"), std::string::npos) << e.why;
  EXPECT_FALSE(fs::exists("attune_was_here"));
}

std::vector<Fixture> cheats() {
  std::vector<Fixture> all = cheat_suite();
  std::erase_if(all, [](const Fixture& f) { return f.honest(); });  // tests of their own, below
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cpu, WorkerCheats, testing::ValuesIn(cheats()),
                         [](const auto& p) { return "n" + p.param.name; });

// A new fixture is in the list: in the tests and in `attune judge --self-test`.
TEST(CheatSuite, HasEveryFixture) {
  std::set<std::string> names, files;
  for (const Fixture& f : cheat_suite()) names.insert(f.name);
  for (const auto& entry : fs::directory_iterator(source_dir() + "/tests/evolve/cheats"))
    if (entry.path().extension() == ".cpp") files.insert(entry.path().stem());
  EXPECT_EQ(names, files);
  EXPECT_EQ(names.size(), cheat_suite().size());
}

TEST(CheatSuite, HasEveryFixtureOfCuda) {
  std::set<std::string> names, files;
  for (const Fixture& f : cuda_cheat_suite()) {
    names.insert(f.name);
    EXPECT_EQ(cuda_fixture_text(f.name).find("#include \"honest.cuh\""), std::string::npos);
  }
  for (const auto& entry : fs::directory_iterator(source_dir() + "/tests/evolve/cuda_cheats"))
    if (entry.path().extension() == ".cu") files.insert(entry.path().stem());
  EXPECT_EQ(names, files);
  EXPECT_EQ(names.size(), cuda_cheat_suite().size());
}

struct Manifest {
  const std::vector<Fixture>& suite;
  std::string path, extension;
};

std::vector<Manifest> manifests() {
  const std::string folder = source_dir() + "/tests/evolve/";
  return {{cheat_suite(), folder + "cheats/manifest.json", ".cpp"},
          {cuda_cheat_suite(), folder + "cuda_cheats/manifest.json", ".cu"}};
}

// There is one list; the files repeat it. DISABLED_WriteManifests writes them anew.
TEST(CheatSuite, ManifestsAreThoseOfTheSuites) {
  for (const Manifest& m : manifests()) {
    EXPECT_EQ(read_text(m.path), manifest_of(m.suite, m.extension)) << m.path;
    for (const Fixture& f : m.suite) EXPECT_STRNE(kind_of(f), "") << f.name;
  }
}

TEST(CheatSuite, DISABLED_WriteManifests) {
  for (const Manifest& m : manifests()) std::ofstream(m.path) << manifest_of(m.suite, m.extension);
}

TEST_F(WorkerEvaluator, TheHonestControlPasses) {
  const Evaluation e = judge("honest");
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  EXPECT_GE(e.stage, Stage::race);
  EXPECT_GT(e.limit, 0);
  EXPECT_LE(e.error, e.limit);
  ASSERT_EQ(e.shapes.size(), 1u);
  EXPECT_EQ(e.shapes[0].candidate.size(), e.shapes[0].incumbent.size());
  EXPECT_GT(e.speedup.mid, 0);
}

EvaluatorOptions of_backward(EvaluatorOptions o, DType dtype = DType::f32) {
  o.shapes[0].problem.pass = Pass::backward;
  o.shapes[0].problem.dtype = dtype;
  return o;
}

TEST_F(WorkerEvaluator, TheHonestControlOfTheBackwardPassPasses) {
  evaluator_ = cpu_evaluator(of_backward(options()));
  const Evaluation e =
      evaluator_->evaluate({"honest_backward", "", cheat("honest_backward")}, naive_);
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  EXPECT_GE(e.stage, Stage::race);
  EXPECT_GT(e.limit, 0);
  EXPECT_LE(e.error, e.limit);
  ASSERT_EQ(e.shapes.size(), 1u);
  EXPECT_EQ(e.shapes[0].candidate.size(), e.shapes[0].incumbent.size());
}

TEST_F(FullWorkerEvaluator, TheLibrarysBackwardPassIsRight) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const EvaluatorOptions o = of_backward(options(), dtype);
    const std::string library = cpu_library({o.shapes[0].problem}, o.threads)[0];
    EXPECT_TRUE(library.starts_with("fused.")) << library;
    evaluator_ = cpu_evaluator(o);
    const Evaluation e = evaluator_->evaluate({library, library, ""}, naive_);
    EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  }
}

TEST_F(WorkerEvaluator, AProgramOfOnePassIsNoneOfTheOther) {
  const Evaluation forward = judge("honest_backward");
  EXPECT_EQ(forward.verdict, Verdict::invalid);
  EXPECT_EQ(forward.why, "it defines attune_candidate_backward alone");
  evaluator_ = cpu_evaluator(of_backward(options()));
  const Evaluation backward = evaluator_->evaluate({"honest", "", cheat("honest")}, naive_);
  EXPECT_EQ(backward.verdict, Verdict::invalid);
  EXPECT_EQ(backward.why, "it does not define attune_candidate_backward");
}

// 29: what a program writes where it must not harms nobody else in the same evaluator.
TEST_F(WorkerEvaluator, StrayWritesHarmNobodyElse) {
  evaluator_ = cpu_evaluator(options());
  for (const char* name : {"02_changes_inputs", "17_writes_past_the_end", "25_changes_call_records",
                           "29_removes_memory", "29_writes_behind_its_output"})
    EXPECT_FALSE(evaluator_->evaluate({name, "", cheat(name)}, naive_).ok()) << name;
  const Evaluation e = evaluator_->evaluate({"honest", "", cheat("honest")}, naive_);
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
}

// 19: the number of samples is fixed, whatever the first calls take.
TEST_F(WorkerEvaluator, ASlowWarmUpBuysNoFewerSamples) {
  const Evaluation e = judge("19_slow_warm_up");
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  ASSERT_EQ(e.shapes.size(), 1u);
  EXPECT_GE(e.shapes[0].candidate.size(), 3u);
}

// 24: another label on the same binary is no new candidate.
TEST_F(WorkerEvaluator, TheSameBinaryIsNotJudgedTwice) {
  const Evaluation first = judge("honest");
  ASSERT_TRUE(first.ok()) << first.why;
  const Evaluation again =
      evaluator_->evaluate({"24_only_a_label", "", cheat("24_only_a_label")}, naive_);
  EXPECT_EQ(again.same_as, "honest");
  EXPECT_FALSE(again.ok());
  EXPECT_EQ(again.binary_hash, first.binary_hash);
  EXPECT_TRUE(again.shapes.empty());
}

// The same in a later sitting of the run, which knows the first one by its record.
TEST_F(WorkerEvaluator, TheSameBinaryIsNotJudgedTwiceAfterAResume) {
  const Evaluation first = judge("honest");
  ASSERT_TRUE(first.ok()) << first.why;
  evaluator_ = cpu_evaluator(options());
  evaluator_->recall({"honest", "", cheat("honest")}, first);
  const Evaluation again =
      evaluator_->evaluate({"24_only_a_label", "", cheat("24_only_a_label")}, naive_);
  EXPECT_EQ(again.same_as, "honest");
  EXPECT_FALSE(again.ok());
  EXPECT_TRUE(again.shapes.empty());
}

// ---- The contract with plain arguments ----

// The example, with one place of it changed.
std::string plain_program(const std::string& part = "", const std::string& instead = "") {
  std::string text = read(source_dir() + "/examples/cpu_attention/naive.cpp");
  EXPECT_NE(text.find(part), std::string::npos) << part;
  return text.replace(text.find(part), part.size(), instead);
}
constexpr const char* kKeys = "causal ? i + 1 : seq_len";
constexpr const char* kCall = "attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);\n}";

TEST_F(WorkerEvaluator, RunAttentionPasses) {
  const Evaluation e = judge_text("plain", plain_program());
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  EXPECT_GE(e.stage, Stage::race);
  EXPECT_GT(e.limit, 0);
  EXPECT_LE(e.error, e.limit);
}

TEST_F(WorkerEvaluator, RunAttentionMustBeRightEverywhere) {
  const struct {
    const char *name, *part, *instead;
  } kWrong[] = {
      {"ignores_causal", kKeys, "seq_len"},
      {"odd_lengths", kKeys, "causal ? i + 1 : seq_len > 1 ? seq_len & ~1 : 1"},
      {"last_row_of_the_timed_shape", kCall,
       "attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);\n"
       "if (seq_len == 192) O[std::size_t(batch) * heads * seq_len * head_dim - 1] += 0.01f; }"},
      {"one_batch", "n < batch * heads", "n < heads"},
      {"one_head_dim", kCall,
       "if (head_dim == 32) attention(Q, K, V, O, batch, heads, seq_len, 32, causal);\n}"},
      {"no_maximum", "weights[j] - largest", "weights[j]"},
  };
  for (const auto& wrong : kWrong) {
    const Evaluation e = judge_text(wrong.name, plain_program(wrong.part, wrong.instead));
    EXPECT_EQ(e.verdict, Verdict::wrong_result) << wrong.name << ": " << e.why;
  }
}

TEST_F(WorkerEvaluator, RunAttentionIsNotAskedForMore) {
  EvaluatorOptions o = options();
  o.shapes[0].problem.heads_q = 4;
  const Evaluation e =
      cpu_evaluator(o)->evaluate({"plain", "", program("plain", plain_program())}, naive_);
  EXPECT_EQ(e.verdict, Verdict::invalid);
  EXPECT_NE(e.why.find("two numbers of heads"), std::string::npos) << e.why;
}

// A run whose start defines attune_candidate asks for all of candidate.h: an answer with the other
// entry point would be checked for less.
TEST_F(WorkerEvaluator, AWeakerContractThanTheStartsIsInvalid) {
  EvaluatorOptions o = options();
  o.contract = Contract::candidate;
  const auto evaluator = cpu_evaluator(o);
  const Evaluation e =
      evaluator->evaluate({"plain", "", program("plain", plain_program())}, naive_);
  EXPECT_EQ(e.verdict, Verdict::invalid) << e.why;
  EXPECT_NE(e.why.find("run_attention"), std::string::npos) << e.why;
  EXPECT_TRUE(evaluator->evaluate({"honest", "", cheat("honest")}, naive_).ok());
  o.contract = Contract::run_attention;
  EXPECT_TRUE(cpu_evaluator(o)->evaluate({"honest", "", cheat("honest")}, naive_).ok());
}

// What is no faster is not accepted in a search, and not checked at longer sequences. For a verdict
// about one program it is.
TEST_F(WorkerEvaluator, ASlowProgramIsCheckedWhenAsked) {
  EvaluatorOptions o = options();
  o.shapes[0].problem.seq_q = o.shapes[0].problem.seq_k = 320;
  o.admit_slow = true;
  const std::string fused = print_default(o);
  const std::string wrong =
      plain_program(kCall,
                    "attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);\n"
                    "if (seq_len > 320) O[0] += 1; }");
  const Evaluation e =
      cpu_evaluator(o)->evaluate({"longer", "", program("longer", wrong)}, {fused, fused, ""});
  EXPECT_EQ(e.verdict, Verdict::wrong_result) << e.why;
}

// 20: nothing is faster than the processor.
TEST_F(WorkerEvaluator, AnImpossibleTimeIsRejected) {
  EvaluatorOptions o = options();
  o.peak_flops = 1e6;
  const Evaluation e = cpu_evaluator(o)->evaluate({"honest", "", cheat("honest")}, naive_);
  EXPECT_EQ(e.verdict, Verdict::cheated) << e.why;
}

TEST(CpuLimit, FollowsTheMeasuredPeak) {
  EXPECT_DOUBLE_EQ(most_cpu_flops(DType::f32, 100, 1, {}), 115);
  EXPECT_DOUBLE_EQ(most_cpu_flops(DType::f32, 100, 2, {.bf16 = true, .f16 = true}), 230);
  for (const DType half : {DType::f16, DType::bf16})
    EXPECT_DOUBLE_EQ(most_cpu_flops(half, 100, 1, {}), 230);
  // AMX_BF16 multiplies bf16 alone.
  EXPECT_DOUBLE_EQ(most_cpu_flops(DType::bf16, 100, 1, {.bf16 = true}), 1840);
  EXPECT_DOUBLE_EQ(most_cpu_flops(DType::f16, 100, 1, {.bf16 = true}), 230);
  EXPECT_DOUBLE_EQ(most_cpu_flops(DType::f16, 100, 1, {.bf16 = true, .f16 = true}), 1840);
}

TEST_F(WorkerEvaluator, TypedCandidatesAreJudged) {
  EvaluatorOptions o = options();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Problem causal = small(dtype);
    causal.causal = true;
    o.shapes = {{"full", small(dtype), 1}, {"causal", causal, 2}};
    const std::string fused = print_default(o);
    const auto evaluator = cpu_evaluator(o);
    const Evaluation e = evaluator->evaluate({fused, fused, ""}, naive_);
    EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
    EXPECT_EQ(e.shapes.size(), 2u);
    EXPECT_GT(e.speedup.mid, 1) << "the fused kernel is slower than the naive loops";
    const Evaluation bad = evaluator->evaluate({"x", "fused.nonsense", ""}, naive_);
    EXPECT_EQ(bad.verdict, Verdict::launch_failed) << bad.why;
  }
}

// All stages: pairs by the full number, N against 2N, fresh workers where the step is small.
TEST_F(WorkerEvaluator, WhatIsFasterIsMeasuredToTheEnd) {
  EvaluatorOptions o = options();
  o.race_pairs = 5;
  o.full_pairs = 15;
  const std::string fused = print_default(o);
  const Evaluation e = cpu_evaluator(o)->evaluate({fused, fused, ""}, naive_);
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  EXPECT_EQ(e.stage, Stage::measure);
  ASSERT_EQ(e.shapes.size(), 1u);
  EXPECT_GE(e.shapes[0].candidate.size(), 14u);
  EXPECT_LT(e.p, 0.01);
}

// A third faster: not obvious, so the noise is measured first, and then several pairs of fresh
// workers decide.
TEST_F(FullWorkerEvaluator, ASmallGainIsConfirmedInSeveralSittings) {
  const std::string slower = cheat("honest");
  std::string text = read(slower);
  const std::string call = "return honest::attention(c);";
  text.replace(text.find(call), call.size(),
               "attune_candidate_call part = *c; part.seq_q = c->seq_q / 4; "
               "honest::attention(&part); " +
                   call);
  const Candidate incumbent{"slower", "", folder_ / "slower.cpp"};
  std::ofstream(incumbent.source) << text;
  EvaluatorOptions o = options();
  o.full_pairs = 15;
  Evaluation e;
  // A busy machine can hide the gain; on a quiet one it may be so clear that no noise is measured
  // first.
  for (int tries = 0; tries < 5 && (e.sitting < 3 || !e.noise.has_value()); ++tries)
    e = cpu_evaluator(o)->evaluate({"honest", "", slower}, incumbent);
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  EXPECT_EQ(e.stage, Stage::measure);
  EXPECT_GE(e.sitting, 3);
  ASSERT_EQ(e.shapes.size(), 1u);
  EXPECT_GE(e.shapes[0].candidate.size(), size_t(3 * e.sitting));
  EXPECT_EQ(e.shapes[0].candidate.size() % size_t(e.sitting), 0u);
  EXPECT_GT(e.speedup.mid, 1);
  ASSERT_TRUE(e.noise.has_value());
  EXPECT_TRUE(std::isfinite(e.noise->margin));
}

// What leaves out work where one key outweighs all others is right, and no faster where samples
// count. Other work on the machine may hide that once.
TEST_F(FullWorkerEvaluator, SkippingWhatOneKeyOutweighsBringsNothing) {
  const std::string name = "37_skips_where_one_key_outweighs";
  EvaluatorOptions o = options();
  o.race_pairs = o.full_pairs = 15;
  Evaluation e;
  for (int tries = 0; tries < 3 && !(e.speedup.mid > 0.85 && e.speedup.mid < 1.15); ++tries)
    e = cpu_evaluator(o)->evaluate({name, "", cheat(name)}, {"honest", "", cheat("honest")});
  EXPECT_EQ(e.verdict, Verdict::ok) << e.why;
  EXPECT_GT(e.speedup.mid, 0.85);
  EXPECT_LT(e.speedup.mid, 1.15);
}

TEST_F(WorkerEvaluator, ComparesInFreshWorkers) {
  EvaluatorOptions o = options();
  const std::string fused = print_default(o);
  const Comparison c =
      cpu_evaluator(o)->compare({naive_, {fused, fused, ""}, {"zeros", "", cheat("12_zeros")}}, 7);
  ASSERT_EQ(c.seconds.size(), 3u);
  EXPECT_TRUE(c.verdicts[0].ok()) << c.verdicts[0].why;
  EXPECT_TRUE(c.verdicts[1].ok()) << c.verdicts[1].why;
  EXPECT_EQ(c.verdicts[2].verdict, Verdict::wrong_result);
  EXPECT_EQ(c.seconds[0][0].size(), 7u);  // three sittings
  EXPECT_EQ(c.seconds[1][0].size(), 7u);
  EXPECT_TRUE(c.seconds[2][0].empty());
}

// A finalist may have been no faster than its incumbent, so that the search never admitted it:
// right at small cases and in every timed call, and wrong for other strides and batches.
TEST_F(WorkerEvaluator, WhatIsComparedIsAdmitted) {
  const std::string name = "34_ignores_strides_of_large_inputs";
  const Comparison c = cpu_evaluator(options())->compare(
      {naive_, {"honest", "", cheat("honest")}, {name, "", cheat(name)}}, 3);
  EXPECT_TRUE(c.verdicts[0].ok()) << c.verdicts[0].why;
  EXPECT_TRUE(c.verdicts[1].ok()) << c.verdicts[1].why;
  EXPECT_EQ(c.verdicts[2].verdict, Verdict::wrong_result);
  EXPECT_EQ(c.verdicts[2].stage, Stage::promote);
  EXPECT_TRUE(c.seconds[2][0].empty());
}

TEST_F(WorkerEvaluator, NoiseIsMeasured) {
  const Noise noise = cpu_evaluator(options())->noise(naive_);
  EXPECT_GT(noise.ratio.mid, 0.2);
  EXPECT_LT(noise.ratio.mid, 5);
  EXPECT_GE(noise.margin, 0);
}

TEST_F(FullWorkerEvaluator, HonestControlsPassAHundredTimes) {
  const auto evaluator = cpu_evaluator(options());
  int failed = 0;
  for (int n = 0; n < 100; ++n) {
    const Evaluation e = evaluator->evaluate({"honest", "", cheat("honest")}, naive_);
    if (!e.ok() && ++failed < 4) ADD_FAILURE() << verdict_name(e.verdict) << ": " << e.why;
  }
  EXPECT_EQ(failed, 0);
}

// Memory follows the shapes: eight of 67 MB each, as `attune evolve --set d64-4k` has them.
TEST(CpuEvaluatorMemory, FollowsTheShapes) {
  TimedShape large{"large", {}, 1};
  large.problem.dtype = DType::f16;
  large.problem.batch = 1;
  large.problem.heads_q = large.problem.heads_kv = 32;
  large.problem.seq_q = large.problem.seq_k = 4096;
  large.problem.dim = large.problem.dim_v = 64;
  const double gigabytes = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)) / 1e9;
  EXPECT_EQ(why_too_large({large}), "");
  if (gigabytes > 9) {
    EXPECT_EQ(why_too_large(std::vector<TimedShape>(8, large)), "");
  }
  large.problem.batch = int64_t{1} << 40;
  EXPECT_NE(why_too_large({large}).find("shape large is too large to be timed"), std::string::npos);
}

}  // namespace
}  // namespace attune::evolve
