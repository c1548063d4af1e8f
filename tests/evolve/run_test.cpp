// The whole loop, with a judge that needs no clock: the same candidates always get the same result.
#include "evolve/run.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "evolve/report/report.hpp"
#include "evolve/report/report_view.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

Problem problem() {
  Problem p;
  p.batch = 1;
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = 1024;
  p.dim = p.dim_v = 64;
  return p;
}

// A machine that every test has.
CpuMachine machine() {
  CpuMachine machine;
  machine.isas = {"AVX3", "AVX2"};
  machine.archs = {{"AVX3", {16, 32}}, {"AVX2", {8, 16}}};
  machine.threads = 2;
  return machine;
}
std::unique_ptr<Space> space() { return cpu_space({problem()}, machine()); }

// Times by a formula of the genes. A few configs are wrong, crash or never end.
class Formula : public Evaluator {
 public:
  explicit Formula(const Space& space, int pause_ms = 0) : space_(space), pause_(pause_ms) {}

  double seconds(const std::string& id) const {
    if (id == "naive") return 1;
    const CpuConfig c = cpu_variant(space_, *space_.parse(id)).config;
    const auto off = [](double x, double best) { return std::abs(std::log2(x / best)); };
    return 0.01 * (1 + 0.2 * off(c.block_q, 192) + 0.15 * off(c.block_k, 128) +
                   0.1 * std::abs(c.mr * c.nv - 24) / 8 + 0.02 * c.exp_degree +
                   (c.pack_v ? 0 : 0.05) + 0.03 * std::abs(c.rescale_threshold - 8) / 8);
  }

  Evaluation evaluate(const Candidate& c, const Candidate& incumbent) override {
    if (pause_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_));
    ++count;
    Evaluation e;
    const size_t hash = std::hash<std::string>{}(c.id) % 23;
    if (c.id != "naive" && hash < 3) {
      e.verdict = hash == 0   ? Verdict::wrong_result
                  : hash == 1 ? Verdict::crashed
                              : Verdict::run_timeout;
      e.stage = Stage::check;
      e.why = "so the formula says";
      return e;
    }
    const Pairs pairs{std::vector<double>(15, seconds(c.id)),
                      std::vector<double>(15, seconds(incumbent.id)), 1, 5};
    e.sitting = pairs.block;
    e.speedup = combined_ratio({&pairs, 1}, 0.95);
    e.stage = e.speedup.mid > 0.97 ? Stage::measure : Stage::race;
    if (e.stage == Stage::measure) e.p = p_value({&pairs, 1});
    e.shapes = {{"s", pairs.a, pairs.b}};
    e.limit = 1e-6;
    return e;
  }
  Noise noise(const Candidate&) override { return {{0.99, 1, 1.01}, 0.01, 0.005}; }
  Comparison compare(const std::vector<Candidate>& candidates, int rounds) override {
    Comparison c;
    c.candidates = candidates;
    for (const Candidate& candidate : candidates) {
      c.verdicts.emplace_back();
      c.seconds.push_back({std::vector<double>(size_t(rounds), seconds(candidate.id))});
    }
    return c;
  }

  int count = 0;

 private:
  using CpuConfig = cpu::CpuConfig;
  const Space& space_;
  int pause_;
};

class EvolveRun : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("attune-run-" + std::to_string(getpid()) + "-" + std::to_string(++number_));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  RunOptions options(const std::string& name, int64_t evaluations, uint64_t seed = 7) const {
    RunOptions o;
    o.folder = folder_ / name;
    fs::create_directories(o.folder);
    o.meta.device = "cpu";
    o.meta.shapes = {{"s", problem(), 1}};
    o.meta.threads = 2;
    o.meta.seed = seed;
    o.meta.budget_evaluations = evaluations;
    o.final_rounds = 3;
    return o;
  }

  std::vector<Record> records(const std::string& name) const {
    std::unique_ptr<Store> store;
    const Status s = Store::open(folder_ / name, false, &store);
    EXPECT_TRUE(s.ok()) << s.message;
    std::vector<Record> all;
    EXPECT_TRUE(store->records(&all).ok());
    return all;
  }

  static void expect_same(const std::vector<Record>& a, const std::vector<Record>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t n = 0; n < a.size(); ++n) {
      ASSERT_EQ(a[n].proposal, b[n].proposal) << "proposal " << n;
      ASSERT_EQ(a[n].outcome.ok, b[n].outcome.ok) << n;
      ASSERT_EQ(a[n].outcome.fitness, b[n].outcome.fitness) << n;
      ASSERT_EQ(a[n].outcome.improved, b[n].outcome.improved) << n;
      ASSERT_EQ(a[n].incumbent, b[n].incumbent) << n;
    }
  }

  fs::path folder_;
  std::unique_ptr<Space> space_ = space();
  Formula formula_{*space_};

 private:
  static int number_;
};
int EvolveRun::number_ = 0;

TEST_F(EvolveRun, ClimbsFromNaiveAndFindsTheFastest) {
  RunResult result;
  const Status s = run(options("a", 150), *space_, formula_, &result);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(result.evaluations, 150);
  EXPECT_NE(result.best, "naive");
  EXPECT_GT(formula_.seconds("naive") / formula_.seconds(result.best), 70);
  ASSERT_EQ(result.final.candidates.size(), 3u);
  EXPECT_EQ(result.final.candidates[0].id, "naive");
  EXPECT_EQ(result.final.candidates[2].id, result.best);
}

// What the library runs is tried right after the start, and is the bar for what is handed back.
TEST_F(EvolveRun, NeverHandsBackLessThanTheLibrary) {
  const std::string best = "fused.AVX3.mr6.nv4.exp5.bq192.bk128.sp0.dot2.pv1.rs8",
                    poor = "fused.AVX3.mr6.nv4.exp6.bq24.bk32.sp0.dot2.pv0.rs32";
  for (const std::string& library : {best, poor}) {
    const auto space = cpu_space({problem()}, machine(), {library});
    for (const char* start : {"naive", "current"}) {
      SCOPED_TRACE(library + " " + start);
      const std::string name = (library == best ? "best-" : "poor-") + std::string(start);
      RunOptions o = options(name, 80);
      o.meta.library = {library};
      o.meta.start = start;
      RunResult result;
      const Status s = run(o, *space, formula_, &result);
      ASSERT_TRUE(s.ok()) << s.message;
      const std::vector<Record> all = records(name);
      const size_t at = start == std::string("naive") ? 1 : 0;
      EXPECT_EQ(all[at].proposal.id, library);
      EXPECT_EQ(all[at].proposal.op, at == 1 ? kLibraryOp : "start");
      EXPECT_LE(formula_.seconds(result.best), formula_.seconds(library));
      EXPECT_GE(place_of(result.final, library), 0) << "it is compared at the end";
      EXPECT_EQ(result.decision.stands, library == best);
      EXPECT_EQ(result.best == library, library == best);
      EXPECT_NE(result.decision.challenger, library);
      EXPECT_EQ(result.decision.shapes[0].promotes, library == poor);
      EXPECT_EQ(result.decision.shapes[0].over, library);

      std::unique_ptr<Store> store;
      ASSERT_TRUE(Store::open(o.folder, false, &store).ok());
      EXPECT_EQ(store->get("decision"), to_json(result.decision));
      const std::string said = gain_text(view_of(evidence_of(*store), *space));
      EXPECT_EQ(said.starts_with("The library's own choice stands: 79 others were tried, none was"),
                library == best)
          << said;
      int64_t evaluations = 0;
      const Status again = replay(o.folder, *space, &evaluations);
      EXPECT_TRUE(again.ok()) << again.message;
    }
  }
}

// However slow it was, and whether it was measured or not.
TEST(Finalists, WhatTheLibraryRunsIsAlwaysOne) {
  std::vector<Record> records;
  const auto add = [&](const std::string& id, bool ok, double fitness) {
    Record r;
    r.proposal.n = int64_t(records.size());
    r.candidate = {id, id, ""};
    r.evaluation.stage = Stage::measure;
    r.outcome.ok = ok;
    r.outcome.fitness = fitness;
    records.push_back(r);
  };
  add("start", true, 0);
  add("slow", true, -3);
  add("refused", false, 0);
  for (const char* id : {"best", "second", "third", "fourth", "fifth"})
    add(id, true, 9.0 - double(records.size()));
  const std::vector<std::string> library = {"slow", "refused", "not tried"};
  std::vector<std::string> ids;
  for (const Candidate& c : finalists_of(records, records[3].candidate, library))
    ids.push_back(c.id);
  EXPECT_EQ(ids,
            (std::vector<std::string>{"best", "slow", "refused", "not tried", "second", "third"}));
}

// Two shapes whose calls run two kernels: each is the bar on its own shape.
TEST_F(EvolveRun, EachShapeHasItsOwnBar) {
  RunMeta meta = options("x", 1).meta;
  meta.shapes = {{"a", problem(), 1}, {"b", problem(), 1}};
  const auto comparison = [](const std::vector<std::vector<double>>& times) {
    Comparison c;
    for (size_t n = 0; n < times.size(); ++n) {
      const std::string id(1, char('p' + n));
      c.candidates.push_back({id, id, ""});
      c.verdicts.emplace_back();
      auto& shapes = c.seconds.emplace_back();
      for (double t : times[n]) shapes.emplace_back(9, t);
    }
    return c;
  };
  // p: the start; q runs shape a, r runs shape b; s challenges.
  const std::vector<std::string> library = {"q", "r"};
  Decision d = decide(meta, comparison({{9, 9}, {1, 3}, {3, 1}, {0.8, 1.1}}), "s", library, 0.01);
  EXPECT_FALSE(d.stands);
  EXPECT_NEAR(d.over_library->mid, std::sqrt(1 / 0.8 / 1.1), 1e-9);
  EXPECT_TRUE(d.shapes[0].promotes);
  EXPECT_FALSE(d.shapes[1].promotes);
  EXPECT_NEAR(d.shapes[1].gain->mid, 1 / 1.1, 1e-9);
  // Faster than q everywhere, and yet not than what calls run.
  d = decide(meta, comparison({{9, 9}, {1, 3}, {3, 1}, {0.9, 2}}), "s", library, 0.01);
  EXPECT_TRUE(d.stands);
  EXPECT_EQ(d.best, "q");
  EXPECT_FALSE(d.shapes[0].promotes) << "the library stands";
  // One of them is good for both.
  d = decide(meta, comparison({{9, 9}, {1, 0.5}, {3, 1}}), "q", library, 0.01);
  EXPECT_EQ(d.best, "q");
  EXPECT_FALSE(d.shapes[0].promotes);
  EXPECT_TRUE(d.shapes[1].promotes);
  // Within the noise; not verified; not comparable.
  Comparison c = comparison({{9, 9}, {1, 3}, {3, 1}, {0.9, 0.9}});
  EXPECT_TRUE(decide(meta, c, "s", library, 0.2).stands);
  EXPECT_FALSE(decide(meta, c, "s", library, 0.1).stands);
  c.verdicts[3].verdict = Verdict::wrong_result;
  EXPECT_TRUE(decide(meta, c, "s", library, 0.1).stands);
  c.verdicts[3].verdict = Verdict::ok;
  c.verdicts[1].verdict = Verdict::crashed;
  d = decide(meta, c, "s", library, 0.1);
  EXPECT_EQ(d.best, "s");
  EXPECT_FALSE(d.shapes[0].promotes) << "nobody knows by how much it is faster";
}

TEST_F(EvolveRun, IsReplayedWithoutMeasuring) {
  RunResult result;
  for (const char* strategy : {"evolve", "random", "best-of-n"}) {
    RunOptions o = options(strategy, 60);
    o.meta.strategy = strategy;
    ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
    int64_t evaluations = 0;
    const Status s = replay(o.folder, *space_, &evaluations);
    EXPECT_TRUE(s.ok()) << s.message;
    EXPECT_EQ(evaluations, 60);
  }
}

TEST_F(EvolveRun, IsTheSameFromTheSameSeed) {
  RunResult result;
  ASSERT_TRUE(run(options("a", 60), *space_, formula_, &result).ok());
  ASSERT_TRUE(run(options("b", 60), *space_, formula_, &result).ok());
  ASSERT_TRUE(run(options("c", 60, 8), *space_, formula_, &result).ok());
  expect_same(records("a"), records("b"));
  EXPECT_NE(records("a")[20].proposal.id, records("c")[20].proposal.id);
}

TEST_F(EvolveRun, GoesOnAfterCtrlC) {
  for (const int window : {1, 4}) {
    const std::string whole = "whole" + std::to_string(window),
                      cut = "cut" + std::to_string(window);
    RunOptions o = options(whole, 50);
    o.meta.window = window;
    RunResult result;
    ASSERT_TRUE(run(o, *space_, formula_, &result).ok());

    o = options(cut, 50);
    o.meta.window = window;
    for (int sitting = 1; sitting < 20; ++sitting) {
      Formula formula(*space_);
      o.stop = [&] { return formula.count >= 7; };
      const Status s = run(o, *space_, formula, &result);
      ASSERT_TRUE(s.ok()) << s.message;
      if (!result.interrupted) break;
      o.resume = true;
    }
    EXPECT_FALSE(result.interrupted);
    expect_same(records(whole), records(cut));
  }
}

// fork and SIGKILL at random moments; what was committed is there, and the end is the same.
TEST_F(EvolveRun, SurvivesTwentyKills) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that starts after a fork of many threads";
#endif
  RunResult result;
  ASSERT_TRUE(run(options("whole", 120), *space_, formula_, &result).ok());
  RunOptions o = options("killed", 120);
  std::mt19937 random(std::random_device{}());
  size_t before = 0;
  for (int kill_number = 0; kill_number < 20; ++kill_number) {
    const pid_t child = fork();
    if (child == 0) {
      Formula slow(*space_, 2);
      RunResult ignored;
      _exit(run(o, *space_, slow, &ignored).ok() ? 0 : 1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 40));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(!WIFEXITED(status) || WEXITSTATUS(status) == 0);
    if (!fs::exists(o.folder + "/run.db")) continue;  // killed before it began
    std::unique_ptr<Store> store;
    if (!Store::open(o.folder, false, &store).ok()) {  // killed while the run was being made
      fs::remove_all(o.folder);
      fs::create_directories(o.folder);
      o.resume = false;
      continue;
    }
    o.resume = true;
    const size_t now = records("killed").size();
    EXPECT_GE(now, before) << "a committed evaluation is gone";
    before = now;
  }
  const Status s = run(o, *space_, formula_, &result);
  ASSERT_TRUE(s.ok()) << s.message;
  expect_same(records("whole"), records("killed"));
}

TEST_F(EvolveRun, TwoProcessesAreRefused) {
  RunResult result;
  RunOptions o = options("a", 5);
  ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
  std::unique_ptr<Store> first, second;
  ASSERT_TRUE(Store::open(o.folder, true, &first).ok());
  const Status s = Store::open(o.folder, true, &second);
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message.find(std::to_string(getpid())), std::string::npos) << s.message;
}

// ---- what goes wrong around a run ----

// Compiles nothing but the start.
class NoCompiler : public Formula {
 public:
  using Formula::Formula;
  Evaluation evaluate(const Candidate& c, const Candidate& incumbent) override {
    if (c.id == "naive") return Formula::evaluate(c, incumbent);
    Evaluation e;
    e.verdict = Verdict::compile_failed;
    e.stage = Stage::compile;
    e.why = "no room for a temporary file";
    return e;
  }
};

TEST_F(EvolveRun, AFullDiskIsNoVerdict) {
  NoCompiler evaluator(*space_);
  RunResult result;
  RunOptions o = options("roomy", 6);
  const Status roomy = run(o, *space_, evaluator, &result);
  ASSERT_TRUE(roomy.ok()) << roomy.message;
  EXPECT_EQ(records("roomy")[5].evaluation.verdict, Verdict::compile_failed);

  o = options("full", 6);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Status full = run(o, *space_, evaluator, &result);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(full.ok());
  EXPECT_NE(full.message.find(o.folder + "/scratch"), std::string::npos) << full.message;
  EXPECT_NE(full.message.find("What was committed is safe"), std::string::npos) << full.message;
  EXPECT_EQ(records("full").size(), 1u) << "what failed for want of room was recorded";
  EXPECT_EQ(result.best, "naive");
  EXPECT_EQ(result.evaluations, 1);

  o.resume = true;
  EXPECT_TRUE(run(o, *space_, formula_, &result).ok());
  EXPECT_EQ(records("full").size(), 6u);
}

TEST_F(EvolveRun, WhatKilledProcessesLeftIsRemoved) {
  RunOptions o = options("a", 3);
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  const fs::path folder = o.folder;
  fs::create_directories(folder / "scratch/0123.4.5.tmp/tmp");
  fs::create_directories(folder / "best");
  const std::string dead = "." + std::to_string(gone) + ".tmp",
                    alive = "." + std::to_string(getppid()) + ".tmp";
  for (const fs::path& path : {folder / ("report.html" + dead), folder / ("best/x" + dead),
                               folder / ("report.html" + alive), folder / "mine.tmp"})
    std::ofstream(path) << "half";
  RunResult result;
  ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
  EXPECT_FALSE(fs::exists(folder / "scratch"));
  EXPECT_FALSE(fs::exists(folder / ("report.html" + dead)));
  EXPECT_FALSE(fs::exists(folder / ("best/x" + dead)));
  EXPECT_TRUE(fs::exists(folder / ("report.html" + alive))) << "somebody is writing it";
  EXPECT_TRUE(fs::exists(folder / "mine.tmp"));
}

// Ctrl-C comes in the n-th comparison.
class StoppedAt : public Formula {
 public:
  StoppedAt(const Space& space, int n) : Formula(space), n_(n) {}
  Comparison compare(const std::vector<Candidate>& candidates, int rounds) override {
    stopped |= ++compared == n_;
    return Formula::compare(candidates, stopped ? 1 : rounds);
  }
  bool stopped = false;
  int compared = 0;

 private:
  int n_;
};

TEST_F(EvolveRun, CtrlCInAComparisonKeepsTheBest) {
  for (const int n : {1, 2}) {  // the finalists, then the final one
    RunOptions o = options("a" + std::to_string(n), 40);
    StoppedAt evaluator(*space_, n);
    o.stop = [&] { return evaluator.stopped; };
    RunResult result;
    const Status s = run(o, *space_, evaluator, &result);
    ASSERT_TRUE(s.ok()) << s.message;
    EXPECT_EQ(evaluator.compared, n);
    EXPECT_TRUE(result.interrupted);
    EXPECT_NE(result.best, "naive");
    EXPECT_NE(result.best, "");
    EXPECT_GT(result.speedup, 10);
    EXPECT_TRUE(result.final.candidates.empty());
    std::unique_ptr<Store> store;
    ASSERT_TRUE(Store::open(o.folder, false, &store).ok());
    EXPECT_TRUE(store->get("final").is_null()) << "half a comparison was kept";

    o.stop = nullptr;
    o.resume = true;
    ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
    EXPECT_FALSE(result.interrupted);
    EXPECT_EQ(result.final.candidates.size(), 3u);
  }
}

TEST_F(EvolveRun, NoiseThatWasCutOffIsNotKept) {
  class CutOff : public Formula {
   public:
    using Formula::Formula;
    Noise noise(const Candidate&) override { return {{0, 1, INFINITY}, INFINITY, 0}; }
  } evaluator(*space_);
  RunOptions o = options("a", 10);
  RunResult result;
  ASSERT_TRUE(run(o, *space_, evaluator, &result).ok());
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::open(o.folder, false, &store).ok());
  EXPECT_TRUE(store->get("noise").is_null()) << store->get("noise");
  int64_t evaluations = 0;
  EXPECT_TRUE(replay(o.folder, *space_, &evaluations).ok());
}

// Notes what was evaluated before the noise was measured.
class NoiseFirst : public Formula {
 public:
  using Formula::Formula;
  Noise noise(const Candidate& c) override {
    ++measured;
    return Formula::noise(c);
  }
  Evaluation evaluate(const Candidate& c, const Candidate& incumbent) override {
    if (c.id != incumbent.id && measured == 0) ++unsafe;
    return Formula::evaluate(c, incumbent);
  }
  int measured = 0, unsafe = 0;
};

TEST_F(EvolveRun, NothingIsHeldAgainstAFastKernelBeforeTheNoiseWasMeasured) {
  NoiseFirst first(*space_), again(*space_);
  RunOptions o = options("a", 10);
  o.meta.start = "current";
  RunResult result;
  ASSERT_TRUE(run(o, *space_, first, &result).ok());
  EXPECT_EQ(first.measured, 1);
  EXPECT_EQ(first.unsafe, 0);
  o.resume = true;
  o.meta.budget_evaluations = 20;
  ASSERT_TRUE(run(o, *space_, again, &result).ok());
  EXPECT_EQ(again.measured, 1);
  EXPECT_EQ(again.unsafe, 0);

  NoiseFirst naive(*space_);  // the first step is obvious, and plain loops are slow to measure
  ASSERT_TRUE(run(options("b", 10), *space_, naive, &result).ok());
  EXPECT_EQ(naive.measured, 1);
  EXPECT_EQ(naive.unsafe, 1);
}

TEST_F(EvolveRun, NoiseThatTheJudgeMeasuredIsKept) {
  class Measures : public Formula {
   public:
    using Formula::Formula;
    Noise noise(const Candidate&) override { return {{0, 1, INFINITY}, INFINITY, 0}; }
    Evaluation evaluate(const Candidate& c, const Candidate& incumbent) override {
      Evaluation e = Formula::evaluate(c, incumbent);
      if (c.id != incumbent.id) e.noise = Noise{{0.98, 1, 1.02}, 0.003, 0.02};
      return e;
    }
  } evaluator(*space_);
  RunOptions o = options("a", 2);
  RunResult result;
  ASSERT_TRUE(run(o, *space_, evaluator, &result).ok());
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::open(o.folder, false, &store).ok());
  EXPECT_EQ(store->get("noise")["margin"], 0.003);
}

// The finalists of this run are equal but for noise: the best median is another one, and no better.
TEST_F(EvolveRun, TheIncumbentStaysUnlessBeatenBeyondTheInterval) {
  class Noisy : public Formula {
   public:
    using Formula::Formula;
    Comparison compare(const std::vector<Candidate>& candidates, int rounds) override {
      Comparison c = Formula::compare(candidates, rounds);
      c.sitting = 3;
      std::mt19937 random(3);
      std::normal_distribution<double> noise(0, 0.1);
      for (size_t n = 0; n < c.seconds.size(); ++n)
        for (double& seconds : c.seconds[n][0])
          seconds = (n == 0 ? 1.01e-2 : 1e-2) * std::exp(noise(random));
      if (first.empty()) first = candidates[0].id;
      return c;
    }
    std::string first;  // the incumbent
  } evaluator(*space_);
  RunOptions o = options("a", 60);
  o.final_rounds = 27;
  RunResult result;
  ASSERT_TRUE(run(o, *space_, evaluator, &result).ok());
  EXPECT_EQ(result.decision.challenger, evaluator.first);
  EXPECT_TRUE(result.decision.stands);  // nor is the challenger better than the library's choice
}

TEST_F(EvolveRun, ARunOfAnotherRuleIsReplayedAndNotContinued) {
  RunOptions o = options("a", 20);
  RunResult result;
  ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
  std::vector<Record> all = records("a");

  std::unique_ptr<Store> first;
  ASSERT_TRUE(Store::open(o.folder, false, &first).ok());
  const std::vector<std::string> library = first->meta().library;

  // The same run, had rule 1 judged it: a record says nothing of sittings.
  RunOptions old = options("old", 20);
  old.meta.library = library;
  old.meta.rule = 1;
  {
    std::unique_ptr<Store> store;
    ASSERT_TRUE(Store::create(old.folder, old.meta, &store).ok());
    for (Record& r : all) {
      r.evaluation.p = 0.04;
      r.evaluation.sitting = 1;
      ASSERT_TRUE(store->append(r).ok());
    }
  }
  int64_t evaluations = 0;
  Status s = replay(old.folder, *space_, &evaluations);
  EXPECT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(evaluations, 20);
  old.resume = true;
  s = run(old, *space_, formula_, &result);
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message.find("judged by rule 1"), std::string::npos) << s.message;

  RunOptions changed = options("changed", 20), later = options("later", 20);
  changed.meta.library = later.meta.library = library;
  changed.meta.rule = 1;
  later.meta.rule = kRule + 1;
  for (const RunOptions& copy : {changed, later}) {
    std::unique_ptr<Store> store;
    ASSERT_TRUE(Store::create(copy.folder, copy.meta, &store).ok());
    for (Record& r : all) {
      if (r.proposal.n == 9 && r.evaluation.ok())
        for (double& seconds : r.evaluation.shapes[0].candidate) seconds /= 2;
      ASSERT_TRUE(store->append(r).ok());
    }
  }
  EXPECT_FALSE(replay(changed.folder, *space_, &evaluations).ok()) << "a better sample";
  EXPECT_NE(replay(later.folder, *space_, &evaluations).message.find("does not know"),
            std::string::npos);
}

TEST_F(EvolveRun, ABudgetGivenAnewExtendsTheRun) {
  RunOptions o = options("a", 20);
  RunResult result;
  ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
  const std::vector<Record> before = records("a");
  o.resume = true;
  o.meta.budget_evaluations = 45;
  ASSERT_TRUE(run(o, *space_, formula_, &result).ok());
  EXPECT_EQ(result.evaluations, 45);
  std::vector<Record> after = records("a");
  ASSERT_EQ(after.size(), 45u);
  after.resize(20);
  expect_same(before, after);
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::open(o.folder, false, &store).ok());
  EXPECT_EQ(store->meta().budget_evaluations, 45);
  EXPECT_EQ(store->get("best"), result.best);
  int64_t evaluations = 0;
  const Status s = replay(o.folder, *space_, &evaluations);
  EXPECT_TRUE(s.ok()) << s.message;
}

TEST_F(EvolveRun, NonsenseIsRefused) {
  RunResult result;
  RunOptions o = options("a", 0);
  EXPECT_FALSE(run(o, *space_, formula_, &result).ok());
  o = options("b", 5);
  o.meta.strategy = "prayer";
  EXPECT_FALSE(run(o, *space_, formula_, &result).ok());
  o = options("c", 5);
  o.resume = true;
  EXPECT_FALSE(run(o, *space_, formula_, &result).ok()) << "there is nothing to resume";
}

}  // namespace
}  // namespace attune::evolve
