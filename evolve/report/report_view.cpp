#include "evolve/report/report_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "evolve/report/html.hpp"
#include "evolve/report/report_external.hpp"

namespace attune::evolve {
namespace {

Json part(const Json& evidence, const char* name) {
  const auto at = evidence.find(name);
  return at == evidence.end() ? Json() : *at;
}

// The best of each cell, when the strategy left no archive.
std::vector<Elite> best_of_cells(const RunView& view) {
  std::map<Cell, Elite> best;
  for (const Record& r : view.records) {
    if (!r.outcome.ok || family_of(*view.space, r.proposal.genome) == nullptr) continue;
    const Cell cell = view.space->cell(r.proposal.genome);
    const auto [at, fresh] =
        best.try_emplace(cell, Elite{cell, r.proposal.island, r.proposal.n, r.outcome.fitness});
    if (!fresh && r.outcome.fitness > at->second.fitness)
      at->second = {cell, r.proposal.island, r.proposal.n, r.outcome.fitness};
  }
  std::vector<Elite> list;
  for (const auto& [cell, elite] : best) list.push_back(elite);
  return list;
}

void read_archive(const Json& evidence, RunView* view) {
  for (const Json& o : part(evidence, "operators"))
    view->operators.push_back({o.at("name").get<std::string>(), o.at("tried").get<int64_t>(),
                               o.at("valid").get<int64_t>(), o.at("improved").get<int64_t>()});
  for (const Json& e : part(evidence, "elites"))
    view->elites.push_back({{e.at("cell").get<std::array<int, kAxes>>()},
                            e.at("island").get<int>(),
                            e.at("n").get<int64_t>(),
                            number_of(e.at("fitness"))});
  if (view->elites.empty()) view->elites = best_of_cells(*view);
}

double log_time(const RunView& view, int candidate) {
  double sum = 0;
  const auto& shapes = view.final->seconds[size_t(candidate)];
  for (size_t s = 0; s < shapes.size() && s < view.meta.shapes.size(); ++s)
    sum += shapes[s].empty() ? INFINITY : view.meta.shapes[s].weight * std::log(median(shapes[s]));
  return sum;
}

// The final comparison has the start first, then the library's choice and the winner, each
// candidate once. Runs without a decision name their winner.
void find_roles(const Json& best, RunView* view) {
  if (!view->final || view->final->candidates.empty()) return;
  const auto& all = view->final->candidates;
  const int last = int(all.size()) - 1;
  if (view->decision) {
    const Decision& d = *view->decision;
    view->start = 0;
    view->winner = place_of(*view->final, d.best);
    for (const std::string& id : shown_library(view->meta, d))
      view->libraries.push_back(place_of(*view->final, id));
    view->library = view->libraries.empty() ? -1 : view->libraries[0];
    if (std::count(view->libraries.begin(), view->libraries.end(), view->library) ==
        std::ptrdiff_t(view->libraries.size()))
      view->libraries.clear();  // one for all
    return;
  }
  const std::string library = view->space->print(view->space->library_default());
  view->start = 0;
  view->winner = last;
  for (int c = 0; c <= last; ++c) {
    if (all[size_t(c)].id == library) view->library = c;
    if (best.is_string() && best == all[size_t(c)].id) view->winner = c;
  }
  if (view->library < 0 && all.size() == 3) view->library = 1;  // made on another machine
  const bool timed = view->final->seconds.size() == all.size();
  if (!best.is_string() && timed && last == 1 && view->library == 1)
    view->winner = log_time(*view, 1) <= log_time(*view, 0) ? 1 : 0;
}

void find_best(const Json& evidence, RunView* view) {
  for (const Record& r : view->records)
    if (r.outcome.ok && (r.outcome.improved || r.proposal.n == 0))
      view->accepted.push_back(r.proposal.n);
  find_roles(part(evidence, "best"), view);
  if (view->winner >= 0)
    view->best = view->final->candidates[size_t(view->winner)];
  else if (!view->accepted.empty())
    view->best = view->record(view->accepted.back())->candidate;
  if (view->best.id.empty()) return;
  for (const Record& r : view->records)
    if (view->best_n < 0 && r.outcome.ok && r.candidate.id == view->best.id)
      view->best_n = r.proposal.n;
  if (const Record* r = view->record(view->best_n))
    view->genome = r->proposal.genome;
  else if (view->best.source.empty())
    view->genome = view->space->parse(view->best.config);
  if (view->genome && family_of(*view->space, *view->genome) == nullptr) view->genome.reset();
  // A parent is older than its child, whatever the file says: this ends.
  for (int64_t n = view->best_n, before = INT64_MAX; n >= 0 && n < before;) {
    const Record* r = view->record(n);
    if (r == nullptr) break;
    view->lineage.push_back(n);
    before = n;
    n = r->proposal.parent;
  }
  std::reverse(view->lineage.begin(), view->lineage.end());
}

}  // namespace

RunView view_of(const Json& evidence, const Space& space) {
  RunView view;
  view.space = &space;
  view.meta = meta_of(evidence.at("meta"));
  if (const Json chain = part(evidence, "chain"); chain.is_object())
    chain.at("head").get_to(view.head);
  for (const Json& r : evidence.at("candidates")) {
    view.records.push_back(record_of(r));
    // The space may have grown since.
    Genome& genome = view.records.back().proposal.genome;
    genome = space.grown(std::move(genome));
  }
  for (const Json& t : part(part(evidence, "proposers"), "tallies"))
    view.tallies.push_back(tally_of(t));
  if (const Json noise = part(evidence, "noise"); noise.is_object()) view.noise = noise_of(noise);
  if (const Json c = part(evidence, "final"); c.is_object()) view.final = comparison_of(c);
  if (const Json c = part(evidence, "finalists"); c.is_object()) view.finalists = comparison_of(c);
  view.decision =
      decision_of(view.meta, view.records, view.finalists, view.final, view.noise, space);
  read_archive(evidence, &view);
  find_best(evidence, &view);
  return view;
}

const Family* family_of(const Space& space, const Genome& genome) {
  const std::vector<Family>& all = space.families();
  if (genome.family < 0 || size_t(genome.family) >= all.size()) return nullptr;
  const Family& family = all[size_t(genome.family)];
  return family.genes.size() == genome.genes.size() ? &family : nullptr;
}

std::optional<Interval> ratio_of(const RunView& view, const Comparison& c, int slower, int faster,
                                 int shape) {
  return ratio_over(view.meta, c, std::vector<int>(view.meta.shapes.size(), slower), faster, shape);
}

std::optional<Interval> over_library(const RunView& view, int which, int shape) {
  if (!view.final) return std::nullopt;
  if (view.libraries.empty()) return ratio_of(view, *view.final, view.library, which, shape);
  return ratio_over(view.meta, *view.final, view.libraries, which, shape);
}

// "none was better by more than 2.1 %".
std::string bound_text(const RunView& view) {
  const Decision& d = *view.decision;
  std::set<std::string> library, others;
  for (const Decision::Shape& s : d.shapes) library.insert(s.over);
  for (const Record& r : view.records)
    if (!library.contains(r.candidate.id)) others.insert(r.candidate.id);
  const std::string tried =
      fmt::format("{} other{} tried", others.size(), others.size() == 1 ? " was" : "s were");
  if (others.empty()) return tried;
  if (!d.over_library || library.contains(d.challenger)) return tried + ", none passed its checks";
  if (!std::isfinite(d.over_library->high)) return tried + ", none was shown to be better";
  const double most = std::max(0.0, 100 * (d.over_library->high - 1));
  return most == 0 ? tried + ", none was better"
                   : fmt::format("{}, none was better by more than {:.1f} %", tried, most);
}

bool gained(const RunView& view) {
  if (view.decision) return !view.decision->stands && view.decision->over_library.has_value();
  if (!view.final || view.winner < 0 || view.library == view.winner) return false;
  if (size_t(view.winner) >= view.final->verdicts.size() ||
      !view.final->verdicts[size_t(view.winner)].ok())
    return false;
  const std::optional<Interval> over = ratio_of(view, *view.final, view.library, view.winner);
  return over && over->low > 1 && over->mid > 1 + (view.noise ? view.noise->margin : 0);
}

// The same of a program: its start is the bar, and the library's kernel another program.
std::string program_gain_text(const RunView& view) {
  const std::string name = view.meta.program->name + view.meta.program->extension();
  const std::optional<Interval> library = over_library(view, view.winner);
  const std::string beside =
      library ? fmt::format(" {} as fast as the library's own kernel", html::times(library)) : "";
  if (view.decision && view.decision->stands)
    return fmt::format("Nothing was gained over {}: {}.{}", name, bound_text(view),
                       beside.empty() ? "" : " It is" + beside + " (95 % interval).");
  return fmt::format("The evolved program is {} as fast as {}{} (95 % intervals).",
                     html::times(ratio_of(view, *view.final, view.start, view.winner)), name,
                     beside.empty() ? "" : ", and" + beside);
}

std::string gain_text(const RunView& view) {
  if (view.records.empty()) return "Nothing was evaluated in this run yet.";
  if (view.best.id.empty()) return "No candidate passed, not even the start.";
  if (!view.final || view.winner < 0)
    return fmt::format(
        "There is no final comparison yet. In the search, the best {} was about {} as {} as the "
        "start.",
        view.meta.program ? "program" : "kernel",
        html::times(view.accepted.empty() ? 1 : speed_of(*view.record(view.accepted.back()))),
        view.meta.external ? "good" : "fast");
  if (size_t(view.winner) < view.final->verdicts.size() &&
      !view.final->verdicts[size_t(view.winner)].ok())
    return fmt::format("Nothing was gained: the winner failed its last check ({}).",
                       verdict_name(view.final->verdicts[size_t(view.winner)].verdict));
  if (view.meta.external) return external_gain_text(view);
  if (view.meta.program) return program_gain_text(view);
  if (view.decision && view.decision->stands) {
    const std::optional<Interval> start = ratio_of(view, *view.final, view.start, view.winner);
    std::string text = fmt::format("The library's own choice stands: {}.", bound_text(view));
    if (start && view.winner != view.start)
      text += fmt::format(" It is {} as fast as the start (95 % interval).", html::times(start));
    return text;
  }
  if (view.winner == view.start && view.winner != view.library)
    return "Nothing was gained: no kernel of the search is faster than the start.";
  const std::optional<Interval> start = ratio_of(view, *view.final, view.start, view.winner),
                                library = over_library(view, view.winner);
  const bool has_start = view.winner != view.start && view.start != view.library;
  const std::string over_start =
      has_start ? fmt::format("{} as fast as the start", html::times(start)) : "";
  if (view.winner == view.library)
    return "Nothing was gained over the library's own choice, which is itself the fastest" +
           (over_start.empty() ? std::string(".") : fmt::format("; it is {}.", over_start));
  if (gained(view))
    return fmt::format(
        "The evolved kernel is {} as fast as the library's own choice{} (95 % intervals).",
        html::times(library), over_start.empty() ? "" : ", and " + over_start);
  std::string text = "Nothing was gained over the library's own choice";
  if (library)
    text += fmt::format(": the evolved kernel is {} as fast{}", html::times(library),
                        library->high < 1  ? ""
                        : library->low > 1 ? ", which is within the noise of this machine"
                                           : ", an interval that includes 1");
  if (has_start) text += fmt::format(". It is {}", over_start);
  return text + " (95 % intervals).";
}

double speed_of(const Record& record) { return std::exp(record.outcome.fitness); }

std::optional<Gain> gain_of(const RunView& view, const Record& child) {
  const Record* parent = view.record(child.proposal.parent);
  if (parent == nullptr || !parent->outcome.ok || !child.outcome.ok) return std::nullopt;
  const Interval& c = child.evaluation.speedup;
  if (child.incumbent == parent->candidate.id && c.mid > 0) return Gain{c, true};
  const double ratio = std::exp(child.outcome.fitness - parent->outcome.fitness);
  const auto half = [](const Interval& i) {
    return i.low > 0 && std::isfinite(i.high) ? 0.5 * std::log(i.high / i.low) : INFINITY;
  };
  // The start's own speed is 1 by definition.
  const double of_parent = parent->proposal.n == 0 ? 0 : half(parent->evaluation.speedup);
  const double width = std::hypot(half(c), of_parent);
  return Gain{{ratio * std::exp(-width), ratio, ratio * std::exp(width)}, false};
}

std::string changes_of(const RunView& view, const Record& parent, const Record& child) {
  const Genome &from = parent.proposal.genome, &to = child.proposal.genome;
  const Family *before = family_of(*view.space, from), *after = family_of(*view.space, to);
  if (before == nullptr || after == nullptr) return "";
  if (before != after) return fmt::format("{} → {}", before->name, after->name);
  std::string text;
  for (size_t g = 0; g < to.genes.size(); ++g)
    if (from.genes[g] != to.genes[g])
      text += fmt::format("{}{} {} → {}", text.empty() ? "" : ", ", after->genes[g].name,
                          after->genes[g].label(from.genes[g]), after->genes[g].label(to.genes[g]));
  return text.empty() ? "nothing" : text;
}

std::vector<Rung> ladder_of(const RunView& view) {
  std::vector<Rung> ladder;
  double before = 0;
  for (int64_t n : view.accepted) {
    const Record& r = *view.record(n);
    const int family = r.proposal.genome.family;
    if (ladder.empty() || ladder.back().family != family)
      ladder.push_back({family, n, n, std::exp(r.outcome.fitness - before)});
    ladder.back().last = n;
    before = r.outcome.fitness;
  }
  return ladder;
}

}  // namespace attune::evolve
