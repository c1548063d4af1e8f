#include "cli/evolve_output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "cli/bench.hpp"
#include "cli/terminal.hpp"

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

// How many times as fast candidate c is as candidate base, over all shapes.
evolve::Interval speedup(const evolve::RunMeta& meta, const evolve::Comparison& c, size_t which,
                         size_t base) {
  std::vector<evolve::Pairs> pairs;
  for (size_t s = 0; s < meta.shapes.size(); ++s)
    pairs.push_back({c.seconds[which][s], c.seconds[base][s], meta.shapes[s].weight, c.sitting});
  return evolve::combined_ratio(pairs, 0.95, 1);
}

bool measured(const evolve::Comparison& c, size_t n) {
  if (!c.verdicts[n].ok()) return false;
  for (const auto& shape : c.seconds[n])
    if (shape.empty()) return false;
  return true;
}

}  // namespace

EvolveProgress::EvolveProgress(const evolve::RunMeta& meta) : animate_(isatty(STDERR_FILENO) != 0) {
  talk(fmt::format(
      "evolving {} on {}: {}",
      meta.shapes.size() == 1 ? meta.shapes[0].name : fmt::format("{} shapes", meta.shapes.size()),
      meta.machine,
      meta.budget_evaluations > 0 ? fmt::format("{} evaluations", meta.budget_evaluations)
                                  : fmt::format("{} of searching", clock(meta.budget_seconds))));
}

void EvolveProgress::show(const evolve::Progress& p) {
  const double rate = p.seconds > 0 ? double(p.evaluations) / p.seconds : 0;
  const std::string line =
      fmt::format("{}  {} tried, {} failed  best {:.2f}x  last step {}  {:.1f}/s  {}",
                  p.comparing ? "final comparison" : clock(p.left) + " left", p.evaluations,
                  p.failed, p.speedup, ratio_text(p.last), rate, p.now);
  if (animate_) {
    rewrite_line(line);
    drawn_ = true;
    return;
  }
  if (p.best == best_ && !p.comparing && last_ >= 0 && p.seconds - last_ < kPause) return;
  best_ = p.best;
  last_ = p.seconds;
  talk(line);
}

void EvolveProgress::end() {
  if (drawn_) rewrite_line("");
}

std::string best_so_far(const evolve::RunResult& result) {
  return fmt::format(
      "best so far: {}, about {:.2f} times as fast as the start by the search's own measurements; "
      "there was no final comparison\n",
      result.best, result.speedup);
}

FinalTable final_table(const evolve::RunMeta& meta, const evolve::RunResult& result) {
  const evolve::Comparison& c = result.final;
  FinalTable t;
  t.json = {{"evaluations", result.evaluations},
            {"interrupted", result.interrupted},
            {"best", result.best},
            {"search_speedup", result.speedup},
            {"rows", evolve::Json::array()}};
  if (c.candidates.empty()) {
    t.text = result.best.empty() ? "nothing was measured\n" : best_so_far(result);
    return t;
  }
  std::vector<Cells> lines{
      {"kernel", "time", "over start", "over library", "error", "limit", "checked"}};
  for (size_t n = 0; n < c.candidates.size(); ++n) {
    const bool good = measured(c, n);
    std::vector<std::string> roles;
    if (n == result.start) roles.push_back("start");
    if (n == result.library) roles.push_back("library");
    if (n == result.winner) roles.push_back("evolved");
    const std::string name = fmt::format("{}: {}", fmt::join(roles, ", "), c.candidates[n].id);
    const auto ratio = [&](size_t base) {
      return good && measured(c, base) ? speedup(meta, c, n, base) : evolve::Interval{};
    };
    const evolve::Interval over_start = ratio(result.start), over_library = ratio(result.library);
    double log_time = 0, weights = 0;
    for (size_t s = 0; s < meta.shapes.size() && good; ++s) {
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
  t.verified = measured(c, result.winner);
  t.text = markdown(lines, 1);
  t.text += fmt::format(
      "\n{} candidates tried; each time is {}, cold data, {} threads\n", result.evaluations,
      meta.shapes.size() == 1 ? "the median of one call" : "the geometric mean over the shapes",
      meta.threads);
  return t;
}

}  // namespace attune::cli
