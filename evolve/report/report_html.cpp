// report.html: one page, section by section.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "evolve/report/html.hpp"
#include "evolve/report/proposers.hpp"
#include "evolve/report/report.hpp"
#include "evolve/report/report_charts.hpp"
#include "evolve/report/report_external.hpp"
#include "evolve/report/report_view.hpp"

namespace attune::evolve {
namespace {

using html::code;
using html::escape;
using html::paragraph;
using html::Table;
using html::times;

constexpr size_t kMostRows = 100;     // of a table that grows with the run
constexpr size_t kMostLetters = 400;  // of a compiler's complaint

std::string number_text(int64_t n) { return fmt::format("{}", n); }

// ---- what it came to ----

std::string fact(const std::string& term, const std::string& large, const std::string& small) {
  return fmt::format("<div><dt>{}</dt><dd><b>{}</b>{}</dd></div>", escape(term), escape(large),
                     escape(small));
}

std::string ratio_fact(const std::string& term, const std::optional<Interval>& i) {
  if (!i) return fact(term, "–", "not measured");
  return fact(term, times(i->mid), fmt::format("95 %: {} to {}", times(i->low), times(i->high)));
}

std::string verified_fact(const RunView& v) {
  const Evaluation* e = nullptr;
  if (v.meta.external) {
    const Record* best = v.record(v.best_n);
    const std::optional<double> score =
        best != nullptr ? claimed_score(best->evaluation) : std::nullopt;
    return fact(
        "Score", score ? fmt::format("{:.6g}", *score) : "–",
        fmt::format("{}; the start: {:.6g}",
                    v.meta.external->judged() ? "by Attune's judge" : "claimed by the evaluator",
                    v.meta.external->start));
  }
  if (v.winner >= 0 && size_t(v.winner) < v.final->verdicts.size())
    e = &v.final->verdicts[size_t(v.winner)];
  else if (const Record* r = v.record(v.best_n))
    e = &r->evaluation;
  if (e == nullptr) return fact("Largest error", "–", "not checked");
  if (!e->ok()) return fact("Verification", "failed", verdict_name(e->verdict));
  return fact("Largest error", html::error(e->error),
              fmt::format("allowed {}; {}", html::error(e->limit),
                          v.winner >= 0 ? "checked again at the end" : "checked in the search"));
}

std::string headline(const RunView& v) {
  std::string shapes;
  for (const TimedShape& s : v.meta.shapes) shapes += (shapes.empty() ? "" : ", ") + s.name;
  std::string out;
  if (v.meta.external)
    out = external_heading(v);
  else
    out = fmt::format(
        "<h1>Attune: an attention kernel evolved for {}</h1>\n<p class=\"soft\">{} · {} · {}</p>\n",
        escape(shapes.empty() ? "nothing" : shapes), escape(v.meta.machine), escape(v.meta.device),
        escape(v.meta.created));
  const bool passed = v.records.empty() || !v.best.id.empty();
  out += fmt::format("<p class=\"gain{}\">{}</p>\n", passed ? "" : " warn", escape(gain_text(v)));
  if (v.best.id.empty()) return out;
  out += "<dl class=\"facts\">";
  if (v.final) {
    out += ratio_fact("Over the start", ratio_of(v, *v.final, v.start, v.winner));
    if (!v.meta.external)
      out += ratio_fact("Over the library's own choice", over_library(v, v.winner));
  } else if (!v.accepted.empty()) {
    out += fact("Over the start", times(speed_of(*v.record(v.accepted.back()))),
                "by the search; there is no final comparison");
  }
  out += verified_fact(v) +
         fact("Evaluations", number_text(int64_t(v.records.size())),
              fmt::format("in {}", html::duration(v.records.empty() ? 0 : v.records.back().at))) +
         "</dl>\n";
  return out + fmt::format("<p>The best: {}</p>\n", code(v.best.id));
}

std::string link(const std::string& file) {
  return fmt::format("<a href=\"{0}\"><code>{0}</code></a>", escape(file));
}

std::string command(const std::string& why, const std::string& line) {
  return fmt::format("{}<pre>{}</pre>\n", paragraph(why), escape(line));
}

// The files beside the page, and what to run in its folder.
std::string use_section(const RunView& v, const Json& info) {
  std::string body;
  if (!v.best.id.empty())
    body += fmt::format(
        "<p>The source of the best kernel is {}, its facts are {}. All measurements are in "
        "{}.</p>\n",
        link(fmt::format("best/{}", best_program_name(v.meta))),
        link("best/best_program_info.json"), link("evidence.json"));
  else
    body += fmt::format("<p>All measurements are in {}.</p>\n", link("evidence.json"));
  if (!v.meta.program && gained(v))
    body += command(
        "Use it: compare once more, and write it into the tuned table. Run this in the folder of "
        "this page.",
        "attune evolve --resume . --promote");
  else if (!v.meta.program && v.final)
    body += paragraph(
        "There is nothing to promote: no kernel of the search is shown to be faster "
        "than what calls run.");
  std::string commands;
  if (info.is_object())
    for (const Json& line : info.value("commands", Json::array()))
      commands += fmt::format("{}{}", commands.empty() ? "" : "\n", line.get<std::string>());
  if (!commands.empty())
    body += command("Measure the kernel again, and repeat the search:", commands);
  body += command("Check that the decisions of this run follow from its measurements:",
                  "attune evolve --replay .");
  if (v.head.empty())
    body += paragraph(
        "The records of this run have no chain of hashes: it was made by a version "
        "that wrote none.");
  else
    body += fmt::format("<p>The last hash of its records: {}</p>\n", code(v.head));
  return html::section("use", "Use it, check it, repeat it", body);
}

std::string role_of(const RunView& v, int c) {
  std::string role;
  for (const auto& [index, name] :
       {std::pair{v.start, "start"}, {v.library, "library"}, {v.winner, "evolved"}})
    if (index == c) role += (role.empty() ? "" : " = ") + std::string(name);
  if (role.empty() && std::count(v.libraries.begin(), v.libraries.end(), c) > 0)
    return "library, for another shape";
  return role.empty() ? "best of the search" : role;
}

// A row for each candidate and shape.
std::string comparison_table(const RunView& v, const Comparison& c, const std::string& caption,
                             int fastest, bool roles) {
  Table table(
      caption,
      {roles ? "kernel" : "place and kernel", "shape", "median",
       roles ? "best relative to it" : "first relative to it", "error", "allowed", "rounds"},
      "llnnnnn");
  for (int k = 0; k < int(c.candidates.size()); ++k) {
    const Evaluation e = size_t(k) < c.verdicts.size() ? c.verdicts[size_t(k)] : Evaluation{};
    std::string which =
        fmt::format("<b>{}</b><br>{}", escape(roles ? role_of(v, k) : number_text(k + 1)),
                    code(c.candidates[size_t(k)].id));
    for (int s = 0; s < int(v.meta.shapes.size()); ++s) {
      const auto* rounds = size_t(k) < c.seconds.size() && size_t(s) < c.seconds[size_t(k)].size()
                               ? &c.seconds[size_t(k)][size_t(s)]
                               : nullptr;
      const bool timed = rounds != nullptr && !rounds->empty();
      table.raw_row({which, escape(v.meta.shapes[size_t(s)].name),
                     timed ? html::duration(median(*rounds)) : "–",
                     k == fastest ? "–" : times(ratio_of(v, c, k, fastest, s)),
                     e.ok() ? html::error(e.error) : escape(verdict_name(e.verdict)),
                     html::error(e.limit), number_text(timed ? int64_t(rounds->size()) : 0)});
      which.clear();  // once for all its shapes
    }
  }
  return table.html();
}

std::string final_section(const RunView& v) {
  std::string body;
  if (!v.final)
    body = paragraph("There is none: the run was stopped before it, or is still going.");
  else if (v.meta.external)
    body = external_comparison(
        v, *v.final,
        v.meta.external->judged()
            ? "Judged again at the end, in turns; gains with 95 % intervals over the repeats"
            : "Evaluated again at the end, in turns. Scores are claimed by the user's evaluator; "
              "gains with 95 % intervals over the repeats, and seconds, are ours");
  else
    body = comparison_table(v, *v.final,
                            "New processes, checked again on new shapes, timed in turns; 95 % "
                            "intervals of paired samples",
                            v.winner, true);
  return html::section("final", "Final comparison", body);
}

// ---- how it got there ----

std::string progress_section(const RunView& v) {
  if (v.records.empty()) return html::section("progress", "Progress", paragraph("No evaluations."));
  Table steps("Accepted steps",
              {"n", "at", "over the start", "over the best before", "operator", "kernel"},
              "nnnnll");
  size_t left_out = v.accepted.size() > kMostRows ? v.accepted.size() - kMostRows : 0;
  for (size_t i = left_out; i < v.accepted.size(); ++i) {
    const Record& r = *v.record(v.accepted[i]);
    steps.raw_row({number_text(r.proposal.n), html::duration(r.at), times(speed_of(r)),
                   r.proposal.n == 0 ? "–" : times(r.evaluation.speedup), escape(r.proposal.op),
                   code(r.candidate.id)});
  }
  std::string body = progress_chart(v) + family_key(v) + steps.html();
  if (left_out > 0)
    body += paragraph(fmt::format("The first {} accepted steps are in evidence.json.", left_out));
  return html::section("progress", "Progress", body);
}

std::string ladder_section(const RunView& v) {
  Table table("A family is one way to compute attention",
              {"family", "gain when it came", "gain within it", "over the start", "from evaluation",
               "at", "what it is"},
              "lnnnnnl");
  for (const Rung& rung : ladder_of(v)) {
    const Record &first = *v.record(rung.first), &last = *v.record(rung.last);
    const Family* family = family_of(*v.space, first.proposal.genome);
    table.raw_row({escape(family != nullptr ? family->name : "?"), times(rung.arrival),
                   times(std::exp(last.outcome.fitness - first.outcome.fitness)),
                   times(speed_of(last)), number_text(rung.first), html::duration(first.at),
                   html::long_text(family != nullptr ? family->meaning : "")});
  }
  return html::section("ladder", "Families, in the order in which they were best",
                       table.empty() ? paragraph("Nothing was accepted.") : table.html());
}

std::string lineage_section(const RunView& v) {
  if (v.lineage.empty())
    return html::section(
        "lineage", "Lineage of the best",
        paragraph(v.best.id.empty() ? "There is no best."
                                    : "The search did not propose it: it is the library's own "
                                      "choice, which won the final comparison."));
  Table table("Each step from its parent, and what it gained",
              {"n", "change", "times its parent", "over the start", "operator", "compared with"},
              "nlnnll");
  for (int64_t n : v.lineage) {
    const Record& r = *v.record(n);
    const Record* parent = v.record(r.proposal.parent);
    const std::optional<Gain> gain = gain_of(v, r);
    table.row({number_text(n),
               parent != nullptr ? changes_of(v, *parent, r) : html::shortened(r.candidate.id, 120),
               gain ? times(gain->ratio) : "–", r.outcome.ok ? times(speed_of(r)) : "–",
               r.proposal.op,
               !gain          ? "–"
               : gain->direct ? "its parent"
                              : "another"});
  }
  std::string genes;
  if (v.genome) {
    const Family& family = *family_of(*v.space, *v.genome);
    Table list(fmt::format("Genes of the best, of the family {}", family.name),
               {"gene", "value", "level", "what it is"}, "lnll");
    for (size_t g = 0; g < family.genes.size(); ++g)
      list.raw_row({escape(family.genes[g].name), escape(family.genes[g].label(v.genome->genes[g])),
                    level_name(family.genes[g].level), html::long_text(family.genes[g].meaning)});
    if (!list.empty()) genes = list.html();
  }
  return html::section("lineage", "Lineage of the best",
                       table.html() +
                           "<p class=\"soft\">Where a step was not compared with its parent "
                           "directly, its ratio is computed through the other kernel, and its "
                           "interval is wider.</p>"
                           "\n" +
                           genes);
}

std::string archive_section(const RunView& v) {
  return html::section("archive", "Archive",
                       paragraph("The best kernel of each cell, relative to the start. The cells "
                                 "keep kernels that use the machine in different ways.") +
                           archive_map(v));
}

// ---- what failed ----

std::string verdict_section(const RunView& v) {
  std::map<Verdict, std::map<Stage, int64_t>> counts;
  for (const Record& r : v.records) ++counts[r.evaluation.verdict][r.evaluation.stage];
  Table table("Candidates by verdict", {"verdict", "ended at", "candidates", "share"}, "llnn");
  for (const auto& [verdict, stages] : counts)
    for (const auto& [stage, count] : stages)
      table.row({verdict_name(verdict), stage_name(stage), number_text(count),
                 fmt::format("{:.1f} %", 100.0 * double(count) / double(v.records.size()))});
  return html::section("verdicts", "Verdicts",
                       table.empty() ? paragraph("No evaluations.") : table.html());
}

std::string error_section(const RunView& v) {
  struct Group {
    const Record* first;
    int64_t count;
  };
  std::vector<Group> groups;
  std::map<std::pair<Verdict, std::string>, size_t> known;
  for (const Record& r : v.records) {
    if (r.evaluation.ok()) continue;
    const auto [at, fresh] =
        known.try_emplace({r.evaluation.verdict, r.evaluation.why}, groups.size());
    if (fresh) groups.push_back({&r, 0});
    ++groups[at->second].count;
  }
  Table table("Failures, equal ones together", {"verdict", "times", "why", "id of the first"},
              "lnll");
  for (size_t i = 0; i < std::min(groups.size(), kMostRows); ++i) {
    const Evaluation& e = groups[i].first->evaluation;
    table.raw_row({escape(verdict_name(e.verdict)), number_text(groups[i].count),
                   html::long_text(html::shortened(e.why, kMostLetters)),
                   code(groups[i].first->candidate.id)});
  }
  std::string body = table.empty() ? paragraph("Nothing failed.") : table.html();
  if (groups.size() > kMostRows)
    body +=
        paragraph(fmt::format("{} more kinds are in evidence.json.", groups.size() - kMostRows));
  return html::section("errors", "Errors", body);
}

// ---- how it searched ----

std::string operator_section(const RunView& v) {
  struct Reached {
    int64_t proposed = 0, accepted = 0;
    double best = -INFINITY;
  };
  std::map<std::string, Reached> reached;
  for (const Record& r : v.records) {
    Reached& of = reached[r.proposal.op];
    ++of.proposed;
    if (!r.outcome.ok) continue;
    of.accepted += r.outcome.improved && r.proposal.n > 0;
    of.best = std::max(of.best, r.outcome.fitness);
  }
  std::vector<OperatorCount> rows = v.operators;
  for (const auto& [name, of] : reached)
    if (std::none_of(rows.begin(), rows.end(), [&](const auto& o) { return o.name == name; }))
      rows.push_back({name, -1, -1, -1});
  Table table(
      "Operators of the search. Improved: raised a cell of the archive; accepted: became "
      "the best of the run",
      {"operator", "tried", "valid", "improved", "evaluated", "accepted", "best reached"},
      "lnnnnnn");
  const auto counted = [](int64_t n) { return n < 0 ? std::string("–") : number_text(n); };
  for (const OperatorCount& o : rows) {
    const Reached of = reached.contains(o.name) ? reached[o.name] : Reached{};
    table.row({o.name, counted(o.tried), counted(o.valid), counted(o.improved),
               number_text(of.proposed), number_text(of.accepted),
               std::isfinite(of.best) ? times(std::exp(of.best)) : "–"});
  }
  return html::section("operators", "Operators",
                       table.empty() ? paragraph("No operator was used.") : table.html());
}

std::string search_section(const RunView& v) {
  double evaluating = 0, compiling = 0;
  for (const Record& r : v.records) {
    evaluating += r.evaluation.seconds;
    compiling += r.evaluation.compile_seconds;
  }
  const double searching = v.records.empty() ? 0 : v.records.back().at;
  Table table("How it was searched", {"what", "value"}, "ll");
  table.row({"strategy", v.meta.strategy})
      .row({"start", v.meta.start})
      .row({"seed", fmt::format("{}", v.meta.seed)})
      .row({"window", number_text(v.meta.window)})
      .row({"budget", v.meta.budget_evaluations > 0
                          ? fmt::format("{} evaluations", v.meta.budget_evaluations)
                          : html::duration(v.meta.budget_seconds)})
      .row({"searched for", html::duration(searching)})
      .row({"of it evaluating", html::duration(evaluating)})
      .row({"of it compiling", html::duration(compiling)});
  if (searching > 0)
    table.row(
        {"evaluations a minute", fmt::format("{:.1f}", 60 * double(v.records.size()) / searching)});
  std::string body = table.html();
  if (v.finalists && v.meta.external)
    body +=
        external_comparison(v, *v.finalists, "The best of the search, evaluated again together");
  else if (v.finalists)
    body += comparison_table(
        v, *v.finalists, "The best candidates of the search, measured again together", 0, false);
  return html::section("strategy", "Search and baselines", body);
}

std::string noise_section(const RunView& v) {
  if (!v.noise) return html::section("noise", "Noise", paragraph("It was not measured."));
  Table table("A program against itself (A/A)", {"what", "value"}, "ll");
  table.row({"ratio of two equal programs", times(v.noise->ratio)})
      .row({"deviation between processes of one program",
            fmt::format("{:.2f} %", 100 * v.noise->margin)})
      .row({"spread of single pairs", fmt::format("{:.2f} %", 100 * v.noise->spread)});
  return html::section("noise", "Noise", table.html());
}

std::string environment_section(const RunView& v) {
  Table table("The machine and the versions", {"what", "value"}, "ll");
  table.row({"attune", v.meta.version})
      .row({"device", v.meta.device})
      .row({"machine", v.meta.machine})
      .row({"threads", number_text(v.meta.threads)})
      .row({"begun", v.meta.created});
  if (v.meta.environment.is_object())
    for (const auto& [name, value] : v.meta.environment.items())
      table.row(
          {name, html::shortened(value.is_string()
                                     ? value.get<std::string>()
                                     : value.dump(-1, ' ', false, Json::error_handler_t::replace),
                                 kMostLetters)});
  return html::section("environment", "Environment", table.html());
}

}  // namespace

std::string report_html(const Json& evidence, const Space& space) try {
  const RunView v = view_of(evidence, space);
  return html::page("Attune: evolved kernel",
                    headline(v) + final_section(v) + (v.meta.external ? claims_section(v) : "") +
                        use_section(v, best_info(evidence, space)) + progress_section(v) +
                        ladder_section(v) + lineage_section(v) + archive_section(v) +
                        verdict_section(v) + error_section(v) + operator_section(v) +
                        proposers_section(v, evidence) + search_section(v) + noise_section(v) +
                        environment_section(v));
} catch (const Json::exception& error) {
  return html::page("Attune: evolved kernel",
                    paragraph(fmt::format("The evidence cannot be read: {}", error.what())));
}

}  // namespace attune::evolve
