// Runs with proposers, by a judge that needs no clock: answers become proposals, runs that were
// killed go on, and a replay needs neither proposer nor network.
#include "evolve/proposals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "evolve/propose/manual.hpp"
#include "evolve/propose/prompt.hpp"
#include "evolve/propose/tally.hpp"
#include "evolve/report/report.hpp"
#include "evolve/report/report_view.hpp"
#include "evolve/run.hpp"
#include "evolve/store/files.hpp"
#include "src/file.hpp"
#include "src/jit/sha256.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText =
    "constexpr int A = 2;  // EVOLVE-PARAM A {1,2,3}\n"
    "// EVOLVE-BLOCK-START f\n"
    "void f() {\n"
    "  for (;;) work();\n"
    "}\n"
    "// EVOLVE-BLOCK-END\n"
    "extern \"C\" void run_attention() { f(); }\n";

std::string edit(const std::string& search, const std::string& replace) {
  return "<<<<<<< SEARCH\n" + search + "\n=======\n" + replace + "\n>>>>>>> REPLACE\n";
}
// The block with so much that makes it fast.
std::string block(int fast, const std::string& more = "") {
  std::string text =
      "```cpp\n// EVOLVE-BLOCK-START f\n" + more + "void f() {\n  for (;;) work();\n";
  for (int n = 0; n < fast; ++n) text += "  // fast\n";
  return text + "}\n// EVOLVE-BLOCK-END\n```\n";
}

size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// The more a text says that it is fast, the faster it is.
class ByText : public Evaluator {
 public:
  explicit ByText(std::string folder) : folder_(std::move(folder)) {}

  double seconds(const Candidate& c) const {
    const std::string text = read_text(folder_ + "/" + c.source);
    return (text.find("A = 3") != std::string::npos ? 0.9 : 1.0) /
           (1 + double(count_of(text, "fast")));
  }
  Evaluation evaluate(const Candidate& c, const Candidate& incumbent) override {
    Evaluation e;
    e.source_hash = jit::hex(jit::sha256(read_text(folder_ + "/" + c.source) + added));
    if (read_text(folder_ + "/" + c.source).find("wrong") != std::string::npos) {
      e.verdict = Verdict::wrong_result;
      e.why = "row 3 is wrong";
      return e;
    }
    const Pairs pairs{std::vector<double>(15, seconds(c)),
                      std::vector<double>(15, seconds(incumbent)), 1, 5};
    e.sitting = pairs.block;
    e.speedup = combined_ratio({&pairs, 1}, 0.95);
    e.stage = e.speedup.mid > 0.97 ? Stage::measure : Stage::race;
    if (e.stage == Stage::measure) e.p = p_value({&pairs, 1});
    e.shapes = {{"s", pairs.a, pairs.b}};
    return e;
  }
  Noise noise(const Candidate&) override { return {{0.99, 1, 1.01}, 0.01, 0.005}; }
  Comparison compare(const std::vector<Candidate>& candidates, int rounds) override {
    Comparison c;
    c.candidates = candidates;
    for (const Candidate& candidate : candidates) {
      c.verdicts.emplace_back();
      c.seconds.push_back({std::vector<double>(size_t(rounds), seconds(candidate))});
    }
    return c;
  }

  std::string added;  // to what it judges: another text than the run has

 private:
  std::string folder_;
};

// Answers in their order, one for each time that it may be asked.
class Script : public Proposer {
 public:
  explicit Script(std::vector<std::string> answers) : answers_(std::move(answers)) {}

  std::string op() const override { return "model"; }
  std::vector<Exchange> poll(const Scene&) override { return std::exchange(came_, {}); }
  void ask(const Scene& scene) override {
    if (scene.most_questions <= 0 || at >= answers_.size()) return;
    Exchange e;
    e.op = op();
    e.who = "script";
    e.parent = scene.best;
    e.messages = Json::array({{{"role", "user"}, {"content", "faster"}}});
    e.answer = answers_[at++];
    e.tries = 1;
    e.cost = 0.5;
    if (e.answer.empty()) e.error = "HTTP 500";
    came_.push_back(std::move(e));
  }
  int64_t in_flight() const override { return int64_t(came_.size()); }
  bool expects() const override { return at < answers_.size() || !came_.empty(); }
  void refused(const Exchange& e, const Refusal& r) override {
    refusals.push_back(std::to_string(e.k) + " " + r.verdict);
  }
  void judged(const Exchange&, const Record& r, const Scene&) override {
    verdicts.push_back(r.evaluation.verdict);
  }
  std::vector<Exchange> end(const Scene&) override { return {}; }

  size_t at = 0;
  std::vector<std::string> refusals;
  std::vector<Verdict> verdicts;

 private:
  std::vector<std::string> answers_;
  std::vector<Exchange> came_;
};

class ProposalsRun : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("attune-proposals-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    source_.name = "start";
    source_.text = kText;
    source_.flags = host_flag_choices();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<Space> space() const {
    std::unique_ptr<Space> space;
    EXPECT_TRUE(program_space(source_, &space, true).ok());
    return space;
  }
  RunOptions options(int64_t evaluations, std::shared_ptr<Proposer> proposer,
                     int window = 1) const {
    RunOptions o;
    o.folder = folder_ / "run";
    fs::create_directories(o.folder);
    o.meta.device = "cpu";
    Problem p;
    p.batch = p.heads_q = p.heads_kv = 1;
    p.seq_q = p.seq_k = 64;
    p.dim = p.dim_v = 32;
    o.meta.shapes = {{"s", p, 1}};
    o.meta.program = source_;
    o.meta.environment = Json::object();
    o.meta.budget_evaluations = evaluations;
    o.meta.window = window;
    o.final_rounds = 3;
    if (proposer) o.proposers = {std::move(proposer)};
    return o;
  }
  RunResult go(const RunOptions& o) {
    RunResult result;
    const auto grown = space();
    ByText evaluator(o.folder);
    const Status s = run(o, *grown, evaluator, &result);
    EXPECT_TRUE(s.ok()) << s.message;
    return result;
  }
  Status replay_it() const {
    int64_t evaluations = 0;
    const auto fresh = space();
    return replay(folder_ / "run", *fresh, &evaluations);
  }
  Contents contents(Exchanges* exchanges = nullptr) const {
    std::unique_ptr<Store> store;
    EXPECT_TRUE(Store::open(folder_ / "run", false, &store).ok());
    Contents all;
    EXPECT_TRUE(store->contents(&all).ok());
    if (exchanges) {
      EXPECT_TRUE(read_exchanges(*store, exchanges).ok());
    }
    return all;
  }

  fs::path folder_;
  ProgramSource source_;
};

TEST_F(ProposalsRun, AnswersBecomeProposalsAndAreAccepted) {
  const auto script = std::make_shared<Script>(std::vector<std::string>{
      block(1), edit("void f() {", "void g();\nvoid f() {  // fast"), block(3, "// wrong\n"),
      edit("nothing", "x"), block(1), "", "```cpp\n" + std::string(kText) + "int more;\n```\n",
      block(3, "constexpr int N = 1;  // EVOLVE-PARAM N {1,2}\n")});
  const RunResult result = go(options(20, script));
  EXPECT_EQ(script->at, 8u);
  EXPECT_EQ(script->refusals,
            (std::vector<std::string>{"3 not_applied", "4 duplicate", "6 cheated"}));
  EXPECT_EQ(script->verdicts,
            (std::vector<Verdict>{Verdict::ok, Verdict::ok, Verdict::wrong_result, Verdict::ok}));
  EXPECT_NE(result.best.find("block.f=m4"), std::string::npos) << result.best;
  EXPECT_GT(result.speedup, 3.9);
  // The search goes on with the new texts and their tunables.
  Exchanges exchanges;
  const Contents all = contents(&exchanges);
  const auto has = [&](const char* piece) {
    return std::count_if(all.records.begin(), all.records.end(), [&](const Record& r) {
      return r.proposal.op != "model" && r.proposal.id.find(piece) != std::string::npos;
    });
  };
  EXPECT_GT(has("block.f=m"), 3);
  const std::vector<Tally> tallies = tallies_of(exchanges, all.records);
  ASSERT_EQ(tallies.size(), 1u);
  const Tally& t = tallies[0];
  EXPECT_EQ(to_json(tally_of(to_json(t))), to_json(t));
  EXPECT_EQ(t.questions, 8);
  EXPECT_EQ(t.failed, 1);
  EXPECT_EQ(t.applied, 4);
  EXPECT_EQ(t.not_applied, 1);
  EXPECT_EQ(t.cheated, 1);
  EXPECT_EQ(t.duplicates, 1);
  EXPECT_EQ(t.ok, 3);
  EXPECT_EQ(t.accepted, 3);
  EXPECT_NEAR(t.cost, 4, 1e-9);
  EXPECT_NEAR(std::exp(t.gain), 4, 0.5);
  const Status s = replay_it();
  EXPECT_TRUE(s.ok()) << s.message;

  // Reports show it, from the database alone.
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::open(folder_ / "run", false, &store).ok());
  const auto fresh = space();
  ASSERT_TRUE(learn_all(*store, fresh.get()).ok());
  ASSERT_TRUE(write_report(*store, *fresh).ok());
  const std::string page = read_text(folder_ / "run" / "report.html");
  EXPECT_NE(page.find("Proposals from models and persons"), std::string::npos);
  EXPECT_NE(page.find("stands nowhere in the program"), std::string::npos);
  EXPECT_EQ(count_of(read_text(folder_ / "run" / "best" / "best_program.cpp"), "fast"), 3u);
}

TEST_F(ProposalsRun, AReplayHoldsEachTextAgainstItsHash) {
  const RunOptions o =
      options(6, std::make_shared<Script>(std::vector<std::string>{block(1), block(2)}));
  RunResult result;
  ByText evaluator(o.folder);
  evaluator.added = "// another text";
  const auto grown = space();
  ASSERT_TRUE(run(o, *grown, evaluator, &result).ok());
  const Status s = replay_it();
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message.find("for a text with the hash"), std::string::npos) << s.message;
  EXPECT_NE(s.message.find("evaluation 0"), std::string::npos) << s.message;
}

TEST_F(ProposalsRun, AreReplayedWithAnyWindow) {
  for (const int window : {1, 3}) {
    std::vector<std::string> answers;
    for (int n = 1; n < 8; ++n) answers.push_back(block(n % 4, "// " + std::to_string(n) + "\n"));
    go(options(15, std::make_shared<Script>(answers), window));
    Exchanges exchanges;
    contents(&exchanges);
    EXPECT_EQ(exchanges.used.size(), 7u);
    const Status s = replay_it();
    EXPECT_TRUE(s.ok()) << s.message;
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(ProposalsRun, GoOnAfterAStopAndUseWhatCame) {
  std::vector<std::string> answers;
  for (int n = 1; n < 6; ++n) answers.push_back(block(n, "// " + std::to_string(n) + "\n"));
  RunOptions o = options(20, std::make_shared<Script>(answers), 2);
  int evaluations = 0;
  o.stop = [&] { return evaluations > 40; };  // asked a few times for each
  o.on_progress = [&](const Progress& p) { evaluations = int(p.evaluations) >= 5 ? 100 : 0; };
  go(o);
  Exchanges first;
  const size_t before = contents(&first).records.size();
  EXPECT_LT(before, 20u);
  EXPECT_FALSE(first.used.empty());

  const auto later = std::make_shared<Script>(std::vector<std::string>{block(9)});
  o = options(0, later);
  o.resume = true;
  go(o);
  Exchanges second;
  const Contents all = contents(&second);
  EXPECT_EQ(all.records.size(), 20u);
  // Each answer was used once, those too that had come and were not judged.
  EXPECT_EQ(second.used.size() + second.refused.size(), second.all.size());
  EXPECT_EQ(second.all.size(), first.all.size() + 1);
  const Status s = replay_it();
  EXPECT_TRUE(s.ok()) << s.message;
}

TEST_F(ProposalsRun, AnAnswerThatWasChangedIsNoticed) {
  go(options(6, std::make_shared<Script>(std::vector<std::string>{block(1)})));
  Contents all = contents();
  Exchanges exchanges;
  contents(&exchanges);
  ASSERT_EQ(exchanges.used.size(), 1u);
  const auto again = [&] {
    const auto fresh = space();
    RunMeta meta = options(6, nullptr).meta;
    Driver driver(meta, *fresh);
    Standing standing;
    return restore(all.records, exchanges, fresh.get(), &driver, &standing);
  };
  EXPECT_TRUE(again().ok()) << again().message;
  exchanges.all[0].answer = block(2);
  EXPECT_NE(again().message.find("other texts come of it"), std::string::npos) << again().message;
  exchanges.all[0].answer = "no";
  EXPECT_NE(again().message.find("it is refused now"), std::string::npos);
  exchanges.all.clear();
  EXPECT_NE(again().message.find("there is none"), std::string::npos);
}

// A program that has nothing but a block: only proposers can change it.
TEST_F(ProposalsRun, AProgramWithoutChoicesWaitsForAnswers) {
  source_.text =
      "// EVOLVE-BLOCK-START f\nvoid f();\n// EVOLVE-BLOCK-END\nvoid run_attention() {}\n";
  source_.flags.clear();
  std::unique_ptr<Space> refused;
  EXPECT_FALSE(program_space(source_, &refused).ok());
  const RunResult result = go(options(10, std::make_shared<Script>(std::vector<std::string>{
                                              edit("void f();", "void f();  // fast"),
                                              edit("void f();  // fast", "// fast fast")})));
  EXPECT_TRUE(result.exhausted);
  EXPECT_EQ(result.evaluations, 3);
  EXPECT_GT(result.speedup, 2.9);
  EXPECT_TRUE(replay_it().ok());
}

TEST_F(ProposalsRun, FilesOfAPersonAreTakenAndAnswered) {
  const fs::path manual = folder_ / "manual";
  fs::create_directories(manual);
  const auto put = [&](const std::string& name, const std::string& text) {
    std::ofstream(manual / "draft") << text;
    fs::rename(manual / "draft", manual / name);
  };
  std::string fast = kText;
  fast.insert(fast.find("  for"), "  // fast\n");
  put("answer-1.cpp", fast);
  put("answer-2.txt", edit("void f() {", "void f() {  // fast"));
  put("answer-3.cpp", fast + "int more;\n");
  put("answer-4.cpp", "");
  put("answer-5.txt", edit("nothing", "x"));
  put("answer-6.cpp", std::string("\xff\xfe"));
  put("other.cpp", fast);
  fs::create_symlink("/etc/passwd", manual / "answer-7.cpp");
  go(options(12, manual_proposer(manual)));

  const auto result = [&](const std::string& name) {
    return parse_json(read_text(manual / (name + ".result.json")));
  };
  EXPECT_EQ(result("answer-1.cpp")["verdict"], "ok");
  EXPECT_EQ(result("answer-1.cpp")["accepted"], true);
  EXPECT_NEAR(result("answer-1.cpp")["over_start"].get<double>(), 2, 0.3);
  EXPECT_GT(result("answer-1.cpp")["seconds"]["s"].get<double>(), 0);
  EXPECT_EQ(result("answer-2.txt")["verdict"], "ok");
  EXPECT_EQ(result("answer-3.cpp")["verdict"], "cheated");
  EXPECT_EQ(result("answer-3.cpp")["reason"], kOutsideChanged);
  EXPECT_EQ(result("answer-4.cpp")["verdict"], "not_applied");
  EXPECT_NE(result("answer-5.txt")["reason"].get<std::string>().find("nowhere"), std::string::npos);
  EXPECT_EQ(result("answer-6.cpp")["verdict"], "not_applied");
  EXPECT_FALSE(fs::exists(manual / "answer-7.cpp.result.json"));
  EXPECT_TRUE(fs::exists(manual / "other.cpp"));
  EXPECT_TRUE(fs::exists(manual / "taken" / "answer-1.cpp"));
  EXPECT_EQ(parse_json(read_text(manual / "status.json"))["running"], false);
  const std::string task = read_text(manual / "TASK.md");
  for (const char* part : {"# Task", "# Machine", "# The program", "answer-NAME", "EVOLVE-BLOCK"})
    EXPECT_NE(task.find(part), std::string::npos) << part;
  EXPECT_EQ(read_text(manual / "parent-0.cpp"), kText);
  const Status s = replay_it();
  EXPECT_TRUE(s.ok()) << s.message;
}

TEST_F(ProposalsRun, QuestionsHaveWhatIsKnown) {
  go(options(12, std::make_shared<Script>(std::vector<std::string>{
                     block(1), block(2, "// wrong\n"), edit("nothing", "x"), block(3)})));
  Exchanges exchanges;
  Contents all = contents(&exchanges);
  for (Record& r : all.records) r.evaluation.kernels = {{"attend<64>", 255, 12, 8, 256}};
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::open(folder_ / "run", false, &store).ok());
  const auto grown = space();
  ASSERT_TRUE(learn_all(*store, grown.get()).ok());
  RunMeta meta = store->meta();
  meta.environment = {{"peak_gflops", 100.0}, {"isa", "AVX3"}};
  int64_t best = 0;
  for (const Record& r : all.records)
    if (r.outcome.improved) best = r.proposal.n;
  const Scene scene{meta, *grown, all.records, exchanges, best, {}, 0, 0};
  const std::string text = question_text(scene, best, AnswerForm::edits);
  for (const char* part :
       {"queries 64, keys 64, head_dim 32", "float32", "AVX3", "100 GFLOP/s",
        "% of the measured peak", "as fast as the program that the run began with",
        "kernel attend<64>: 255 registers a thread, 256 bytes of static shared memory, spills: 12 "
        "bytes stored, 8 loaded",
        "row 3 is wrong", "stands nowhere", "+  // fast", "<<<<<<< SEARCH", "run_attention"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(question_text(scene, best, AnswerForm::blocks).find("<<<<<<< SEARCH"),
            std::string::npos);
  EXPECT_NE(repair_text({"not_applied", "it is odd"}, AnswerForm::edits).find("it is odd"),
            std::string::npos);
}

// A run on a GPU that never took place: its question says what is known of the GPU, and CUDA's
// rules.
struct CudaScene {
  explicit CudaScene(const std::string& text, DType dtype = DType::f16) {
    meta.device = "cuda:0";
    meta.machine = "NVIDIA H200, compute capability 9.0";
    meta.environment = {{"gpu", "NVIDIA H200"},      {"arch", {90, 232448, 233472, 132}},
                        {"gpu_l2", 60 << 20},        {"gpu_memory_bus_bits", 6144},
                        {"gpu_most_sm_mhz", 1980.0}, {"gpu_most_memory_mhz", 3201.0}};
    Problem p;
    p.batch = 2;
    p.heads_q = p.heads_kv = 32;
    p.seq_q = p.seq_k = 2048;
    p.dim = p.dim_v = 64;
    p.dtype = dtype;
    meta.shapes = {{"2x32x2048x64 f16", p, 1}};
    meta.program = ProgramSource{};
    meta.program->name = "naive";
    meta.program->language = Language::cuda;
    meta.program->text = text;
    const Status s = program_space(*meta.program, &space, true);
    EXPECT_TRUE(s.ok()) << s.message;
    Record r;
    r.proposal.genome = space->start();
    r.candidate.id = "naive";
    r.evaluation.shapes = {{"2x32x2048x64 f16", {1e-3}, {1e-3}}};
    r.outcome.ok = true;
    records.push_back(r);
  }
  std::string question() const {
    return question_text({meta, *space, records, exchanges, 0, {}, 0, 0}, 0, AnswerForm::edits);
  }

  RunMeta meta;
  std::unique_ptr<Space> space;
  std::vector<Record> records;
  Exchanges exchanges;
};

TEST(Questions, OfACudaProgramHaveItsGpuAndItsRules) {
  const std::string naive = read_text(source_dir() + "/examples/cuda_attention/naive.cu");
  const std::string text = CudaScene(naive).question();
  // 4 B H S^2 D operations in a millisecond, of 132 x 1980 MHz x 4096.
  for (const char* part :
       {"132 multiprocessors; shared memory: 228 KiB each, at most 227 KiB a block", "60 MiB",
        "tensor cores 1071 TFLOP/s", "memory: 4917 GB/s at most",
        "6.4 % of the tensor cores' limit", "Q, K, V and O are float16",
        "All work goes into the given stream", "no cuBLAS, cuDNN or CUTLASS",
        "the compiler's flags are fixed", "tensor cores that take 16-bit operands",
        "head_dim is that of the timed shapes"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("One thread computes"), std::string::npos);
  EXPECT_EQ(text.find("measured peak"), std::string::npos);
}

TEST(Questions, OfACudaProgramNameTheFlagsThatItDeclares) {
  const std::string naive = read_text(source_dir() + "/examples/cuda_attention/naive.cu");
  const std::string text =
      CudaScene("// EVOLVE-PARAM REGISTERS {none,-maxrregcount=64}\n" + naive).question();
  EXPECT_NE(text.find("the compiler's flags that the program declares"), std::string::npos) << text;
  EXPECT_EQ(text.find("flags are fixed"), std::string::npos);
}

}  // namespace
}  // namespace attune::evolve
