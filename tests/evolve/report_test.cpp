#include "evolve/report/report.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "evolve/report/html.hpp"
#include "evolve/report/report_view.hpp"
#include "tests/evolve/sample_run.hpp"

namespace attune::evolve {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class ReportTest : public ::testing::Test {
 protected:
  // The evidence of a run of `count` evaluations.
  Json evidence(int64_t count) {
    const std::string folder = folder_.path() + "/" + std::to_string(count);
    write_sample_run(folder, space_, count);
    std::unique_ptr<Store> store;
    EXPECT_TRUE(Store::open(folder, false, &store).ok());
    const Status written = write_report(*store, space_);
    EXPECT_TRUE(written.ok()) << written.message;
    last_ = folder;
    return evidence_of(*store);
  }

  TemporaryFolder folder_;
  SampleSpace space_;
  std::string last_;
};

TEST_F(ReportTest, EvidenceHasEverything) {
  const Json e = evidence(60);
  const Json file = Json::parse(read(last_ + "/evidence.json"));
  EXPECT_EQ(file["candidates"], e["candidates"]);
  ASSERT_EQ(file["candidates"].size(), 60u);
  EXPECT_EQ(file["meta"]["environment"]["commit"], "0123abc");
  EXPECT_EQ(file["final"]["seconds"][2][1].size(), 25u);
  EXPECT_EQ(file["noise"]["margin"], 0.012);
  EXPECT_EQ(file["space"]["families"][1]["genes"][0]["name"], "block_q");
  const Json& c = file["candidates"][7];
  EXPECT_EQ(c["evaluation"]["binary_hash"], "bb7");
  EXPECT_EQ(c["evaluation"]["shapes"][0]["candidate"].size(), 15u);
  EXPECT_EQ(c["proposal"]["parent"], 1);
  EXPECT_EQ(c["proposal"]["op"], "hardware.tile");
}

TEST_F(ReportTest, PageHasEverySectionAndEscapes) {
  evidence(60);
  const std::string page = read(last_ + "/report.html");
  for (const char* id : {"final", "progress", "ladder", "lineage", "archive", "verdicts", "errors",
                         "operators", "strategy", "noise", "environment"})
    EXPECT_TRUE(has(page, std::string("<section id=\"") + id + "\"")) << id;
  EXPECT_FALSE(has(page, "<script"));
  EXPECT_TRUE(has(page, "&lt;script&gt;alert(&#39;"));
  EXPECT_TRUE(has(page, "&lt;Sample &amp; Sons&gt;"));
  EXPECT_FALSE(has(page, "://"));
  EXPECT_TRUE(has(page, "wrong_result"));
  EXPECT_TRUE(has(page, "naive → fused"));
}

TEST_F(ReportTest, ViewFindsWhatHappened) {
  const Json e = evidence(60);
  const RunView v = view_of(e, space_);
  EXPECT_EQ(v.accepted, (std::vector<int64_t>{0, 1, 7, 13, 19, 25, 31, 37, 43, 49, 55}));
  EXPECT_EQ(v.best_n, 55);
  EXPECT_EQ(v.lineage, v.accepted);
  EXPECT_EQ(v.start, 0);
  EXPECT_EQ(v.library, 1);
  EXPECT_EQ(v.winner, 2);
  const std::vector<Rung> ladder = ladder_of(v);
  ASSERT_EQ(ladder.size(), 2u);
  EXPECT_EQ(ladder[1].first, 1);
  EXPECT_EQ(ladder[1].last, 55);
  EXPECT_NEAR(ladder[1].arrival, std::exp(3), 1e-9);
  const std::optional<Interval> speedup = ratio_of(v, *v.final, v.start, v.winner);
  ASSERT_TRUE(speedup);
  EXPECT_NEAR(speedup->mid, 62.5, 2);
  EXPECT_LE(speedup->low, speedup->mid);
  EXPECT_GE(speedup->high, speedup->mid);
  EXPECT_TRUE(gain_of(v, v.records[1])->direct);
  const Gain through = *gain_of(v, v.records[7]);
  EXPECT_FALSE(through.direct);
  EXPECT_NEAR(through.ratio.mid, std::exp(0.1), 1e-9);
  EXPECT_LT(through.ratio.low, 1.06);
  EXPECT_EQ(changes_of(v, v.records[1], v.records[7]), "mr 2 → 6");
  EXPECT_FALSE(v.elites.empty());  // made from the records: the run has stored none
}

// One candidate can be two of start, library and winner; it is measured once.
TEST_F(ReportTest, RolesThatFallTogether) {
  Json e = evidence(60);
  Comparison final = comparison_of(e["final"]);
  final.candidates.pop_back();
  final.seconds.pop_back();
  final.verdicts.pop_back();
  final.candidates[1].id = final.candidates[1].config = space_.print(space_.library_default());
  e["final"] = to_json(final);
  RunView v = view_of(e, space_);
  EXPECT_EQ(v.library, 1);
  EXPECT_EQ(v.winner, 1);
  e["best"] = "naive";
  v = view_of(e, space_);
  EXPECT_EQ(v.winner, 0);
  EXPECT_EQ(v.best_n, 0);
  EXPECT_TRUE(has(report_html(e, space_), "id=\"environment\""));
}

// What the page and the tool say first.
TEST_F(ReportTest, SaysWhatWasGained) {
  Json e = evidence(60);
  RunView v = view_of(e, space_);
  EXPECT_TRUE(gained(v));
  EXPECT_TRUE(has(gain_text(v), "The evolved kernel is ")) << gain_text(v);
  EXPECT_TRUE(has(gain_text(v), " as fast as the start (95 % intervals)"));
  EXPECT_TRUE(has(report_html(e, space_), "attune evolve --resume . --promote"));

  v.library = v.winner;
  EXPECT_FALSE(gained(v));
  EXPECT_TRUE(has(gain_text(v), "Nothing was gained over the library's own choice, which is"));
  v.start = v.winner;
  EXPECT_TRUE(has(gain_text(v), "itself the fastest."));
  v.library = 1;
  EXPECT_TRUE(has(gain_text(v), "no kernel of the search is faster than the start"));

  v = view_of(e, space_);
  v.noise->margin = 100;  // two equal programs differ by more than was gained
  EXPECT_FALSE(gained(v));
  EXPECT_TRUE(has(gain_text(v), "which is within the noise of this machine"));
  std::swap(v.library, v.winner);
  EXPECT_TRUE(has(gain_text(v), "Nothing was gained over the library's own choice: the evolved"));
  v.final->verdicts[size_t(v.winner)].verdict = Verdict::wrong_result;
  EXPECT_FALSE(gained(v));
  EXPECT_TRUE(has(gain_text(v), "failed its last check (wrong_result)"));
  v.final.reset();
  EXPECT_TRUE(has(gain_text(v), "There is no final comparison yet."));
}

TEST_F(ReportTest, AWinnerThatTheSearchNeverProposed) {
  Json e = evidence(60);
  e["final"]["candidates"][2]["id"] = "fused.unknown";
  const RunView v = view_of(e, space_);
  EXPECT_EQ(v.best_n, -1);
  EXPECT_TRUE(v.lineage.empty());
  EXPECT_TRUE(has(report_html(e, space_), "the library&#39;s own choice"));
  EXPECT_EQ(best_info(e, space_)["id"], "fused.unknown");
}

TEST_F(ReportTest, AnEmptyRunHasAPage) {
  evidence(0);
  const std::string page = read(last_ + "/report.html");
  EXPECT_TRUE(has(page, "Nothing was evaluated"));
  EXPECT_TRUE(has(page, "id=\"environment\""));
  EXPECT_FALSE(std::filesystem::exists(last_ + "/best"));
}

TEST_F(ReportTest, RunsThatWereStoppedEarly) {
  for (int64_t count : {1, 2, 8}) {
    evidence(count);
    EXPECT_TRUE(has(read(last_ + "/report.html"), "There is no final comparison yet.")) << count;
    EXPECT_TRUE(has(read(last_ + "/report.html"), "there is no final comparison")) << count;
    EXPECT_TRUE(has(read(last_ + "/best/best_program.cpp"), "int main()")) << count;
  }
}

TEST_F(ReportTest, AStartThatFails) {
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::create(folder_.path() + "/x", sample_meta(), &store).ok());
  Record r = sample_record(space_, 0);
  r.evaluation.verdict = Verdict::crashed;
  r.outcome = {};
  ASSERT_TRUE(store->append(r).ok());
  ASSERT_TRUE(write_report(*store, space_).ok());
  EXPECT_TRUE(has(read(folder_.path() + "/x/report.html"), "not even the start"));
}

TEST_F(ReportTest, SpeedsThatNoChartCanShow) {
  for (double fitness : {-700'000.0, 700'000.0, -744.0}) {
    const std::string folder = folder_.path() + "/" + std::to_string(fitness);
    std::unique_ptr<Store> store;
    ASSERT_TRUE(Store::create(folder, sample_meta(), &store).ok());
    Record r = sample_record(space_, 0);
    r.outcome = {true, fitness, true};
    ASSERT_TRUE(store->append(r).ok());
    EXPECT_TRUE(write_report(*store, space_).ok());
    EXPECT_TRUE(has(read(folder + "/report.html"), "</html>"));
  }
}

TEST_F(ReportTest, EvidenceThatIsNone) {
  EXPECT_TRUE(has(report_html(Json{{"meta", 1}}, space_), "cannot be read"));
  EXPECT_TRUE(best_info(Json::array(), space_).is_null());
  std::unique_ptr<Store> store;
  ASSERT_TRUE(Store::create(folder_.path() + "/x", sample_meta(), &store).ok());
  ASSERT_TRUE(store->put("final", {{"candidates", 7}}).ok());
  EXPECT_FALSE(write_report(*store, space_).ok());
}

TEST_F(ReportTest, BestProgramCompilesByItself) {
  evidence(60);
  const std::string program = last_ + "/best/best_program.cpp";
  const std::string source = read(program);
  EXPECT_TRUE(has(source, "query rows a task"));
  EXPECT_TRUE(has(source, ".block_q = 64,"));
  EXPECT_TRUE(has(source, "attune evolve --device cpu"));
  if (std::system("c++ --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no c++ here";
  const std::string command =
      "c++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only '" + program + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << source;
  const Json info = Json::parse(read(last_ + "/best/best_program_info.json"));
  EXPECT_EQ(info["genes"]["block_q"], 64);
  EXPECT_EQ(info["lineage"].size(), 11u);
  EXPECT_EQ(info["comparison"][0]["which"], "start");
  EXPECT_GT(info["comparison"][0]["speedup"]["low"], 50);
  EXPECT_EQ(info["comparison"][2]["error"], 2e-6);
  EXPECT_EQ(info["provenance"]["evaluations"], 60);
}

TEST_F(ReportTest, AThousandEvaluationsStaySmall) {
  evidence(1000);
  EXPECT_LT(std::filesystem::file_size(last_ + "/report.html"), 2'000'000u);
}

TEST(ReportHtml, Figures) {
  EXPECT_EQ(html::escape("a<b>&\"'\x01"), "a&lt;b&gt;&amp;&quot;&#39;\uFFFD");
  EXPECT_EQ(html::times(1.0234), "1.023×");
  EXPECT_EQ(html::times(62.14), "62.1×");
  EXPECT_EQ(html::times(Interval{60.94, 62.1, 630}), "62.1× (60.9 to 630)");
  EXPECT_EQ(html::times(Interval{0, 2, INFINITY}), "2.00× (too few samples)");
  EXPECT_EQ(html::times(std::optional<Interval>{}), "not measured");
  EXPECT_EQ(html::duration(0.00162), "1.62 ms");
  EXPECT_EQ(html::shortened("ab\u00e4cd", 3), "ab …");  // never half a letter
}

}  // namespace
}  // namespace attune::evolve
