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
std::unique_ptr<Space> space() {
  CpuMachine machine;
  machine.isas = {"AVX3", "AVX2"};
  machine.archs = {{"AVX3", {16, 32}}, {"AVX2", {8, 16}}};
  machine.threads = 2;
  return cpu_space({problem()}, machine);
}

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
                      std::vector<double>(15, seconds(incumbent.id))};
    e.speedup = combined_ratio({&pairs, 1}, 0.95, uint64_t(count));
    e.stage = e.speedup.mid > 0.97 ? Stage::measure : Stage::race;
    if (e.stage == Stage::measure) e.p = p_not_above({&pairs, 1}, 0.01, uint64_t(count));
    e.shapes = {{"s", pairs.a, pairs.b}};
    e.limit = 1e-6;
    return e;
  }
  Noise noise(const Candidate&, int) override { return {{0.99, 1, 1.01}, 0.01, 0.005}; }
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
    Noise noise(const Candidate&, int) override { return {{0, 1, INFINITY}, INFINITY, 0}; }
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
