#include "cli/evolve_output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "cli/bench.hpp"
#include "cli/terminal.hpp"
#include "evolve/report/report_external.hpp"

namespace attune::cli {
namespace {

constexpr double kPause = 10;  // seconds between two plain lines

std::string clock(double seconds) {
  const int whole = int(seconds);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string ratio_text(const evolve::Interval& r) {
  return fmt::format("{:.2f} ({:.2f}..{:.2f})", r.mid, r.low, r.high);
}

// A program may differ from the start in dozens of places; the report lists them.
std::string short_id(const std::string& id) {
  constexpr size_t kLongest = 48;
  const size_t first = id.find("; ");
  if (id.size() <= kLongest || first == std::string::npos) return id;
  int more = 0;
  for (size_t at = first; at != std::string::npos; at = id.find("; ", at + 2)) ++more;
  return fmt::format("{}; {} more]", id.substr(0, first), more);
}

}  // namespace

EvolveProgress::EvolveProgress(const evolve::RunMeta& meta)
    : external_(meta.external),
      animate_(isatty(STDERR_FILENO) != 0),
      said_(std::chrono::steady_clock::now()) {
  talk(fmt::format("evolving {} on {}: {}",
                   external_                 ? fmt::format("{}{} by its {}", meta.program->name,
                                                           meta.program->extension(), meta.shapes[0].name)
                   : meta.shapes.size() == 1 ? meta.shapes[0].name
                                             : fmt::format("{} shapes", meta.shapes.size()),
                   meta.machine,
                   meta.budget_evaluations > 0
                       ? fmt::format("{} evaluations", meta.budget_evaluations)
                       : fmt::format("{} of searching", clock(meta.budget_seconds))));
}

void EvolveProgress::show(const evolve::Progress& p) {
  const double rate = p.seconds > 0 ? double(p.evaluations) / p.seconds : 0;
  const std::string state = p.comparing ? "final comparison" : clock(p.left) + " left";
  const std::string line =
      external_ ? fmt::format("{}  {} tried, {} failed  best score about {:.5g}  {:.2g}/s  {}",
                              state, p.evaluations, p.failed,
                              score_after(*external_, std::log(p.speedup)), rate, short_id(p.now))
                : fmt::format("{}  {} tried, {} failed  best {:.2f}x  last step {}  {:.1f}/s  {}",
                              state, p.evaluations, p.failed, p.speedup, ratio_text(p.last), rate,
                              short_id(p.now));
  if (animate_) {
    rewrite_line(line);
    drawn_ = true;
    return;
  }
  if (p.best == best_ && !p.comparing && last_ >= 0 && p.seconds - last_ < kPause) return;
  best_ = p.best;
  last_ = p.seconds;
  said_ = std::chrono::steady_clock::now();
  talk(line);
}

void EvolveProgress::note(const std::string& what) {
  if (animate_) {
    rewrite_line(what);
    drawn_ = true;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (std::chrono::duration<double>(now - said_).count() < kPause) return;
  said_ = now;
  talk(what);
}

void EvolveProgress::end() {
  if (drawn_) rewrite_line("");
}

std::string best_so_far(const evolve::RunMeta& meta, const evolve::RunResult& result) {
  if (meta.external)
    return fmt::format(
        "best so far: {}, with a score of about {:.5g}, {}; there was no final comparison\n",
        result.best, score_after(*meta.external, std::log(result.speedup)),
        meta.external->judged() ? "by the search's own measurements" : "as the evaluator claims");
  return fmt::format(
      "best so far: {}, about {:.2f} times as fast as the start by the search's own measurements; "
      "there was no final comparison\n",
      result.best, result.speedup);
}

namespace {

// Of a run by scores: which numbers are an evaluator's claims, and which are ours.
void add_claims(const evolve::RunMeta& meta, const evolve::RunResult& result, FinalTable* t) {
  const evolve::Comparison& c = result.final;
  const evolve::ExternalSpec& spec = *meta.external;
  const std::string whose = spec.judged() ? "measured" : "claimed";
  std::vector<Cells> lines{{"program", whose + " " + meta.shapes[0].name, "over start",
                            "evaluations", "seconds each", "verdict"}};
  t->json["evaluator"] = {{"what", spec.what()},
                          {"sha256", spec.hash},
                          {"metric", meta.shapes[0].name},
                          {"goal", spec.minimize ? "minimize" : "maximize"}};
  const std::vector<int> start{0};
  for (size_t n = 0; n < c.candidates.size(); ++n) {
    const std::string& id = c.candidates[n].id;
    const evolve::Evaluation& e = c.verdicts[n];
    const evolve::Claims claims = e.claims.value_or(evolve::Claims{});
    const bool good = measured(c, int(n));
    std::vector<std::string> roles;
    if (n == 0) roles.push_back("start");
    if (id == result.decision.best) roles.push_back("evolved");
    if (roles.empty()) roles.push_back("tried");
    const std::optional<evolve::Interval> over =
        good ? ratio_over(meta, c, start, int(n)) : std::nullopt;
    const std::optional<double> score = claimed_score(e);
    const double seconds = claims.seconds.empty() ? 0 : evolve::median(claims.seconds);
    lines.push_back({fmt::format("{}: {}", fmt::join(roles, ", "), short_id(id)),
                     score ? fmt::format("{:.6g}", *score) : "-",
                     good ? gain_interval(spec, over) : "-",
                     fmt::format("{}", claims.scores.size()), fmt::format("{:.3g}", seconds),
                     evolve::verdict_name(e.verdict)});
    t->json["rows"].push_back(
        {{"id", id},
         {"roles", roles},
         {whose,
          {{"score", score ? evolve::Json(*score) : evolve::Json()},
           {"scores", claims.scores},
           {"metrics", claims.metrics}}},
         {"over_start", over ? evolve::Json{over->low, over->mid, over->high} : evolve::Json()},
         {"seconds", claims.seconds},
         {"verdict", evolve::verdict_name(e.verdict)},
         {"why", e.why}});
  }
  t->verified = measured(c, place_of(c, result.decision.best));
  t->text = markdown(lines, 1);
  if (spec.judged())
    t->text += fmt::format(
        "\n{} candidates tried. The numbers are those of Attune's judge, not claims: every result "
        "was compared with the reference's, {}, and the two were timed in turns. Speedup is over "
        "the reference.\n",
        result.evaluations, reference_of(spec));
  else
    t->text += fmt::format(
        "\n{} candidates tried. The scores are claimed by the user's evaluator, {}, and nothing "
        "here "
        "checks them. The repeats, the 95 % intervals over them, and the seconds are ours.\n",
        result.evaluations, spec.what());
}

}  // namespace

FinalTable final_table(const evolve::RunMeta& meta, const evolve::RunResult& result) {
  const evolve::Comparison& c = result.final;
  FinalTable t;
  t.json = {{"evaluations", result.evaluations},
            {"interrupted", result.interrupted},
            {"best", result.best},
            {"library_stands", result.decision.stands},
            {"search_speedup", result.speedup},
            {"rows", evolve::Json::array()}};
  if (c.candidates.empty()) {
    t.text = result.best.empty() ? "nothing was measured\n" : best_so_far(meta, result);
    return t;
  }
  if (meta.external) {
    add_claims(meta, result, &t);
    return t;
  }
  std::vector<Cells> lines{{meta.program ? "program" : "kernel", "time", "over start",
                            "over library", "error", "limit", "checked"}};
  const evolve::Decision& d = result.decision;
  const size_t shapes = meta.shapes.size();
  const std::vector<int> start(shapes, 0);
  std::vector<int> library;
  for (const std::string& id : shown_library(meta, d)) library.push_back(place_of(c, id));
  for (size_t n = 0; n < c.candidates.size(); ++n) {
    const std::string& id = c.candidates[n].id;
    const bool good = measured(c, int(n));
    std::vector<std::string> roles;
    if (n == 0) roles.push_back("start");
    if (std::count(library.begin(), library.end(), int(n)) > 0) roles.push_back("library");
    if (id == d.best) roles.push_back("evolved");
    if (roles.empty()) roles.push_back("tried");
    const std::string name = fmt::format("{}: {}", fmt::join(roles, ", "), short_id(id));
    const auto over = [&](const std::vector<int>& bases) {
      return good ? ratio_over(meta, c, bases, int(n)).value_or(evolve::Interval{})
                  : evolve::Interval{};
    };
    const evolve::Interval over_start = over(start), over_library = over(library);
    double log_time = 0, weights = 0;
    for (size_t s = 0; s < shapes && good; ++s) {
      log_time += meta.shapes[s].weight * std::log(evolve::median(c.seconds[n][s]));
      weights += meta.shapes[s].weight;
    }
    const double time = good ? std::exp(log_time / weights) : 0;
    const evolve::Evaluation& e = c.verdicts[n];
    lines.push_back({name, good ? fmt::format("{:.3f} ms", time * 1e3) : "-",
                     good ? ratio_text(over_start) : "-", good ? ratio_text(over_library) : "-",
                     fmt::format("{:.1e}", e.error), fmt::format("{:.1e}", e.limit),
                     e.ok() ? "ok" : evolve::verdict_name(e.verdict)});
    const auto interval = [](const evolve::Interval& i) {
      return evolve::Json{i.low, i.mid, i.high};
    };
    t.json["rows"].push_back({{"id", c.candidates[n].id},
                              {"roles", roles},
                              {"seconds", time},
                              {"over_start", interval(over_start)},
                              {"over_library", interval(over_library)},
                              {"error", e.error},
                              {"limit", e.limit},
                              {"verdict", evolve::verdict_name(e.verdict)},
                              {"why", e.why}});
  }
  t.verified = measured(c, place_of(c, d.best));
  t.text = markdown(lines, 1);
  t.text += fmt::format(
      "\n{} candidates tried; each time is {}, cold data, {} threads\n", result.evaluations,
      meta.shapes.size() == 1 ? "the median of one call" : "the geometric mean over the shapes",
      meta.threads);
  return t;
}

}  // namespace attune::cli
