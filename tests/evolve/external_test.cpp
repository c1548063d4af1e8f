// An evaluator of the user's own: its scores, its verdicts, the rule, and the end of its processes.
#include "evolve/judge/external.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "evolve/judge/external_process.hpp"
#include "evolve/judge/rule.hpp"
#include "evolve/store/files.hpp"
#include "tests/evolve/sample_run.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

ExternalSpec spec_with(double start, bool minimize = false) {
  ExternalSpec spec;
  spec.minimize = minimize;
  set_start(start, &spec);
  return spec;
}

// ---- scores ----

TEST(ExternalScore, RatiosWhereTheStartIsAboveZero) {
  const ExternalSpec up = spec_with(2), down = spec_with(2, true);
  EXPECT_TRUE(up.ratio);
  EXPECT_DOUBLE_EQ(*pseudo_time(up, 2) / *pseudo_time(up, 4), 2);
  EXPECT_DOUBLE_EQ(*pseudo_time(down, 4) / *pseudo_time(down, 2), 2);
  EXPECT_FALSE(pseudo_time(up, 0));
  EXPECT_FALSE(pseudo_time(up, -1));
  EXPECT_DOUBLE_EQ(score_after(up, std::log(1.5)), 3);
  EXPECT_DOUBLE_EQ(score_after(down, std::log(2)), 1);
  EXPECT_EQ(gain_text(up, 1.5), "1.5x");
}

TEST(ExternalScore, DifferencesWhereItIsNot) {
  for (const double start : {-4.0, 0.0}) {
    const ExternalSpec up = spec_with(start), down = spec_with(start, true);
    EXPECT_FALSE(up.ratio);
    EXPECT_DOUBLE_EQ(*pseudo_time(up, start), 1);
    EXPECT_LT(*pseudo_time(up, start + 1), 1);
    EXPECT_GT(*pseudo_time(down, start + 1), 1);
    EXPECT_NEAR(score_after(up, std::log(1 / *pseudo_time(up, start + 1))), start + 1, 1e-12);
    EXPECT_NEAR(score_after(down, std::log(1 / *pseudo_time(down, start - 2))), start - 2, 1e-12);
  }
  EXPECT_EQ(gain_text(spec_with(-4), std::exp(0.5)), "+2");
  EXPECT_EQ(gain_text(spec_with(-4, true), std::exp(0.5)), "-2");
}

TEST(ExternalScore, NoScoreMakesATimeThatIsNone) {
  for (const double start : {1.0, 0.0, -3.0, 1e300, 5e-324})
    for (const bool minimize : {false, true})
      for (const double score : {1e308, -1e308, 5e-324, -5e-324, 0.0, double(INFINITY),
                                 double(-INFINITY), double(NAN), 1.0})
        if (const auto time = pseudo_time(spec_with(start, minimize), score)) {
          EXPECT_TRUE(std::isfinite(*time) && *time > 0) << start << " " << score;
        }
  EXPECT_FALSE(pseudo_time(spec_with(1), NAN));
  EXPECT_FALSE(pseudo_time(spec_with(0), INFINITY));
}

TEST(ExternalScore, CombinedScoreElseTheMeanOfWhatIsNoFeature) {
  ExternalSpec spec;
  std::string why;
  EXPECT_EQ(score_of(spec, {{"combined_score", 3}, {"other", 100}}, &why), 3);
  EXPECT_EQ(score_of(spec, {{"a", 1}, {"b", 3}}, &why), 2);
  spec.features = {"b"};
  EXPECT_EQ(score_of(spec, {{"a", 1}, {"b", 3}}, &why), 1);
  EXPECT_FALSE(score_of(spec, {}, &why));
  EXPECT_EQ(why, "there is no metric that is a number");
  EXPECT_FALSE(score_of(spec, {{"combined_score", NAN}}, &why));
  EXPECT_EQ(why, "combined_score is nan");
  spec.metric = "Speed Up";
  EXPECT_EQ(score_of(spec, {{"speed_up", 2}}, &why), 2);
  EXPECT_FALSE(score_of(spec, {{"a", 1}}, &why));
  EXPECT_EQ(why, "there is no metric Speed Up; there are: a");
}

TEST(ExternalScore, MetricsOfWhatACommandPrints) {
  const auto speedup = [](const char* text) {
    const Metrics found = metrics_in(text, "speedup");
    return found.contains("speedup") ? found.at("speedup") : -1;
  };
  EXPECT_EQ(speedup("Speedup: 2.41x\n"), 2.41);
  EXPECT_EQ(speedup("compiling...\nspeedup = 1e-3\r\nbye\n"), 1e-3);
  EXPECT_EQ(speedup("  - SPEEDUP : +2"), 2);
  EXPECT_EQ(speedup("speedup: 1\nspeedup: 2\n"), 2) << "the last one counts";
  EXPECT_EQ(speedup("speedup: 2\nbest speedup: 9\n"), 2) << "the name alone comes first";
  EXPECT_EQ(speedup("[12:30:05] result, speedup: 3"), 3);
  EXPECT_EQ(speedup(R"({"speedup": 4, "time": 1})"), 4);
  EXPECT_EQ(speedup("log\n{\"metrics\": {\"speedup\": 5}}\n"), 5);
  EXPECT_EQ(speedup("log\n{\n  \"speedup\": 6\n}\n"), 6);
  EXPECT_TRUE(std::isnan(speedup("speedup: nan")));
  EXPECT_EQ(speedup("speedups: 2\nspeedup: fast\n{\"speedup\": \"2\"}\n"), -1);
  EXPECT_EQ(speedup(""), -1);
  EXPECT_EQ(metrics_in("Max Error: 0.5", "max_error").at("max_error"), 0.5);
  EXPECT_LE(metrics_in(std::string(100'000, '{') + "\nspeedup: 1", "speedup").size(), 1u);
}

TEST(ExternalScore, TextIsShortenedAndHasNoControlCodes) {
  EXPECT_EQ(scrubbed("a\x1b[31mb\tc\nd\x7f\r", 100), "a[31mb\tc\nd");
  EXPECT_EQ(scrubbed("a\xc2\x9b"
                     "b",
                     100),
            "ab");
  EXPECT_LT(scrubbed(std::string(100'000, 'x'), 1000).size(), 1100u);
  EXPECT_EQ(scrubbed("\xff", 10), "\xef\xbf\xbd");
  for (size_t most = 1; most < 12; ++most) (void)scrubbed("äöüäöüäöü", most);
}

// ---- the rule ----

TEST(ExternalRule, EqualPairsOfFreshProcessesAreNoGain) {
  const std::vector<Pairs> twins = {{{1, 1}, {1, 1}, 1, kFresh}};
  EXPECT_DOUBLE_EQ(p_value(twins), 0.5);
  EXPECT_EQ(combined_ratio(twins, kConfidence).mid, 1);
  const std::vector<Pairs> better = {{{1, 1}, {1.001, 1.001}, 1, kFresh}};
  EXPECT_LT(p_value(better), Spending().level());
  const std::vector<Pairs> one = {{{1}, {2}, 1, kFresh}};
  EXPECT_EQ(p_value(one), 1) << "one evaluation says nothing of the next";
}

// ---- evaluations ----

class External : public testing::Test {
 protected:
  External() {
    options_.place.child = external_child(tool_path());
    options_.place.scratch = folder_.path() + "/scratch";
    options_.place.suffix = ".txt";
    options_.programs = folder_.path();
    options_.spec.python = "/usr/bin/python3";
    options_.spec.seconds = 20;
    options_.seed = 1;
  }

  void SetUp() override {
    if (!fs::exists(options_.spec.python)) GTEST_SKIP() << "there is no python3";
    ASSERT_FALSE(options_.place.child.empty());
  }

  Candidate program(const std::string& id, const std::string& text) {
    EXPECT_TRUE(write_file(folder_.path() + "/" + id + ".txt", text).ok());
    return {id, "", id + ".txt"};
  }

  void evaluator(const std::string& text) {
    options_.spec.file = folder_.path() + "/evaluator.py";
    EXPECT_TRUE(write_file(options_.spec.file, text).ok());
  }

  ExternalRun run(const std::string& text) {
    return run_external(options_.spec, options_.place, text);
  }

  // The start's score is 1.
  std::unique_ptr<Evaluator> made() {
    set_start(1, &options_.spec);
    return external_evaluator(options_);
  }

  int calls() const {
    std::ifstream file(folder_.path() + "/calls");
    std::string line;
    int count = 0;
    while (std::getline(file, line)) ++count;
    return count;
  }

  TemporaryFolder folder_;
  ExternalOptions options_;
};

constexpr const char* kScoreOfText = R"(
import pathlib
def evaluate(path):
    with open(pathlib.Path(__file__).parent / "calls", "a") as calls:
        calls.write("call\n")
    return {"combined_score": float(open(path).read())}
)";

TEST_F(External, ScoresAndArtifactsOfAPythonFile) {
  evaluator(R"(
import sys, helper
from openevolve.evaluation_result import EvaluationResult
def evaluate(path):
    assert path.endswith(".txt") and __name__ == "evaluation_module"
    print('{"metrics": {"combined_score": 99}}')
    print("\x1b[31mred", file=sys.stderr)
    return EvaluationResult({"combined_score": helper.VALUE, "text": "slow"}, {"log": b"bytes"})
)");
  ASSERT_TRUE(write_file(folder_.path() + "/helper.py", "VALUE = 2.5\n").ok());
  const ExternalRun r = run("x");
  EXPECT_EQ(r.verdict, Verdict::ok) << r.why;
  EXPECT_EQ(r.score, 2.5);
  EXPECT_EQ(r.artifacts.at("log"), "bytes");
  EXPECT_EQ(r.artifacts.at("text"), "slow");
  EXPECT_EQ(r.artifacts.at("stderr"), "[31mred\n");
  EXPECT_GT(r.seconds, 0);
}

TEST_F(External, WhatIsNoResultIsAVerdictWithAReason) {
  const struct {
    const char *body, *why;
    Verdict verdict;
  } cases[] = {
      {"raise ValueError('no')", "ValueError: no", Verdict::crashed},
      {"import sys; sys.exit(3)", "SystemExit: 3", Verdict::crashed},
      {"return 3", "evaluate() returned int, not a dict", Verdict::wrong_result},
      {"return None", "evaluate() returned NoneType", Verdict::wrong_result},
      {"return {}", "there is no metric", Verdict::wrong_result},
      {"return {'combined_score': float('nan')}", "combined_score is nan", Verdict::wrong_result},
      {"return {'combined_score': 'high'}", "there is no metric", Verdict::wrong_result},
      {"return {'combined_score': True}", "there is no metric", Verdict::wrong_result},
      {"import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV", Verdict::crashed},
      {"import os; os._exit(5)", "exit code 5", Verdict::crashed},
  };
  for (const auto& c : cases) {
    evaluator(std::string("def evaluate(path):\n    ") + c.body + "\n");
    const ExternalRun r = run("x");
    EXPECT_EQ(r.verdict, c.verdict) << c.body << ": " << r.why;
    EXPECT_NE(r.why.find(c.why), std::string::npos) << c.body << ": " << r.why;
  }
  evaluator("def other(path): pass\n");
  EXPECT_NE(run("x").why.find("it defines no evaluate(program_path)"), std::string::npos);
  evaluator("def evaluate(path:\n");
  EXPECT_NE(run("x").why.find("SyntaxError"), std::string::npos);
}

TEST_F(External, WhatIsWrittenInPlaceOfAResultIsNoneOfIt) {
  for (const char* forged :
       {"{}garbage", "[]", "{}", "[[[", R"({"metrics": 3, "artifacts": {}, "stages": 0})",
        R"({"metrics": {"a": 1}, "artifacts": [1], "stages": 0})",
        R"({"metrics": {"a": 1}, "artifacts": {"a": {}}, "stages": 0})",
        R"({"metrics": {"a": 1}, "artifacts": {}, "stages": "x"})",
        R"({"metrics": {"a": {}}, "artifacts": {}, "stages": 1e99})",
        R"({"error": {}, "why": 1})"}) {
    evaluator(
        std::string("import os\nFDS = '/proc/self/fd/'\ndef evaluate(path):\n"
                    "    fds = [f for f in os.listdir(FDS) if os.path.lexists(FDS + f)]\n"
                    "    fd = [f for f in fds if 'attune-result' in os.readlink(FDS + f)][0]\n"
                    "    os.write(int(fd), b'''") +
        forged + "''')\n    os._exit(0)\n");
    const ExternalRun r = run("x");
    EXPECT_EQ(r.verdict, Verdict::wrong_result) << forged << ": " << r.why;
  }
}

TEST_F(External, StagesEndWhereAThresholdIsNotReached) {
  evaluator(R"(
def evaluate(path): return {"combined_score": -1}
def evaluate_stage1(path): return {"combined_score": float(open(path).read())}
def evaluate_stage2(path): return {"combined_score": 7.0, "second": 1}
)");
  EXPECT_EQ(run("0.6").score, 7);
  EXPECT_EQ(run("0.6").stages, 2);
  EXPECT_EQ(run("0.4").score, 0.4);
  EXPECT_EQ(run("0.4").stages, 1);
  options_.spec.cascade = false;
  EXPECT_EQ(run("0.4").score, -1);
}

TEST_F(External, AHangIsKilledWithAllThatItStarted) {
  int adopts = 0;  // an emulator may not know this
  if (prctl(PR_GET_CHILD_SUBREAPER, &adopts) != 0) GTEST_SKIP() << "orphans cannot be adopted here";
  evaluator(R"py(
import os, pathlib, subprocess, sys, time
HERE = pathlib.Path(__file__).parent
def evaluate(path):
    for n, session in enumerate((False, True)):
        code = "import os,pathlib,time; pathlib.Path(%r).write_text(str(os.getpid())); time.sleep(99)"
        subprocess.Popen([sys.executable, "-c", code % str(HERE / f"pid{n}")], start_new_session=session)
    while not all((HERE / f"pid{n}").exists() and (HERE / f"pid{n}").read_text() for n in (0, 1)):
        time.sleep(0.01)
    time.sleep(99)
)py");
  options_.spec.seconds = 2;
  const ExternalRun r = run("x");
  EXPECT_EQ(r.verdict, Verdict::run_timeout);
  EXPECT_LT(r.seconds, 10);
  for (const char* name : {"/pid0", "/pid1"}) {
    std::ifstream file(folder_.path() + name);
    pid_t pid = 0;
    ASSERT_TRUE(file >> pid) << "it had no time to start: " << name;
    EXPECT_EQ(kill(pid, 0), -1) << name << " still runs";
  }
  EXPECT_TRUE(fs::is_empty(options_.place.scratch));
}

TEST_F(External, EndlessOutputHarmsNobody) {
  evaluator("def evaluate(path):\n    while True: print('garbage' * 1000)\n");
  options_.spec.seconds = 1;
  const ExternalRun r = run("x");
  EXPECT_EQ(r.verdict, Verdict::run_timeout);
  EXPECT_LT(r.artifacts.at("stdout").size(), 20'000u);
}

TEST_F(External, ACommandPrintsItsMetric) {
  options_.spec.file.clear();
  options_.spec.metric = "speed up";
  options_.spec.command = "echo \"Speed-up: $(cat \"{program}\")x\"; echo talk >&2";
  EXPECT_EQ(run("2.5").score, 2.5);
  options_.spec.command = "echo speed_up: 1; echo broken >&2; exit 4 # {program}";
  const ExternalRun r = run("2");
  EXPECT_EQ(r.verdict, Verdict::crashed);
  EXPECT_EQ(r.why, "it ended with exit code 4\nbroken");
  options_.spec.command = "echo nothing {program}";
  EXPECT_EQ(run("2").verdict, Verdict::wrong_result);
}

// ---- the judge ----

TEST_F(External, ScoresThatNeverDifferNeedFewEvaluations) {
  evaluator(kScoreOfText);
  const auto judge = made();
  const Candidate start = program("start", "1"), worse = program("worse", "0.999"),
                  twin = program("twin", "1.0"), better = program("better", "1.001");
  EXPECT_TRUE(judge->evaluate(start, start).ok());
  Spending spending;
  EXPECT_FALSE(believed(judge->evaluate(worse, start), &spending));
  const int before = calls();
  EXPECT_FALSE(believed(judge->evaluate(twin, start), &spending));
  EXPECT_EQ(calls(), before + 1) << "one evaluation is enough to reject";
  const Evaluation e = judge->evaluate(better, start);
  EXPECT_EQ(calls(), before + 3);
  EXPECT_TRUE(believed(e, &spending));
  EXPECT_NEAR(e.speedup.mid, 1.001, 1e-9);
  const Comparison c = judge->compare({start, better}, 27);
  EXPECT_EQ(calls(), before + 5) << "one of each: what is known of both is as good";
  EXPECT_EQ(winner_of(c, {score_shape(options_.spec)}, {0}), 1u);
}

TEST_F(External, ScoresOfZeroAndFailuresAreNoGains) {
  evaluator(kScoreOfText);
  const auto judge = made();
  const Candidate start = program("start", "1");
  EXPECT_TRUE(judge->evaluate(start, start).ok());
  EXPECT_EQ(judge->evaluate(program("zero", "0"), start).verdict, Verdict::wrong_result);
  EXPECT_EQ(judge->evaluate(program("nan", "nan"), start).verdict, Verdict::wrong_result);
  EXPECT_EQ(judge->evaluate(program("text", "fast"), start).verdict, Verdict::crashed);
  const Evaluation twin = judge->evaluate(program("copy", "1"), start);
  EXPECT_EQ(twin.verdict, Verdict::invalid);
  EXPECT_EQ(twin.same_as, "start");
}

TEST_F(External, ALaterSittingKnowsTextsAndScores) {
  evaluator(kScoreOfText);
  const Candidate start = program("start", "1"), better = program("better", "1.001");
  const auto first = made();
  const Evaluation of_start = first->evaluate(start, start),
                   of_better = first->evaluate(better, start);
  ASSERT_TRUE(of_start.ok() && of_better.ok());
  const auto later = made();
  later->recall(start, of_start);
  later->recall(better, of_better);
  const int before = calls();
  const Evaluation twin = later->evaluate(program("copy", "1.001"), start);
  EXPECT_EQ(twin.verdict, Verdict::invalid);
  EXPECT_EQ(twin.same_as, "better");
  EXPECT_EQ(calls(), before) << "nothing is run for it";
}

TEST_F(External, NoiseIsMeasuredAndTwinsAreNotAccepted) {
  evaluator(R"(
import random
def evaluate(path):
    words = open(path).read().split()
    return {"combined_score": float(words[0]) * random.Random().lognormvariate(0, 0.05)}
)");
  const auto judge = made();
  const Candidate start = program("start", "1");
  EXPECT_TRUE(judge->evaluate(start, start).ok());
  Spending spending;
  int accepted = 0;
  for (int n = 0; n < 4; ++n)
    accepted += believed(
        judge->evaluate(program("twin" + std::to_string(n), "1 " + std::to_string(n)), start),
        &spending);
  EXPECT_EQ(accepted, 0);
  const Noise noise = judge->noise(start);
  EXPECT_GT(noise.spread, 0);
  EXPECT_EQ(noise.margin, 0);
  const Evaluation e = judge->evaluate(program("better", "3"), start);
  EXPECT_TRUE(believed(e, &spending)) << e.p;
  EXPECT_GE(e.claims->scores.size(), 6u);
}

}  // namespace
}  // namespace attune::evolve
