#include "evolve/report/report_external.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "evolve/report/html.hpp"

namespace attune::evolve {
namespace {

using html::code;
using html::escape;
using html::paragraph;
using html::Table;

constexpr const char* kJudged =
    "Scores are measured by Attune's judge, which compared every result with the reference's.";
constexpr size_t kMostClaims = 100, kClaimLetters = 4000, kMostMetrics = 8;

std::string file_of(const RunView& v) { return v.meta.program->name + v.meta.program->extension(); }

std::string number(std::optional<double> value) {
  return value ? fmt::format("{:.6g}", *value) : "–";
}

double mean(const std::vector<double>& values) {
  return values.empty()
             ? 0
             : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

const Evaluation* of_final(const RunView& v, int which) {
  if (!v.final || which < 0 || size_t(which) >= v.final->verdicts.size()) return nullptr;
  return &v.final->verdicts[size_t(which)];
}

}  // namespace

std::optional<double> claimed_score(const Evaluation& e) {
  if (!e.claims || e.claims->scores.empty()) return std::nullopt;
  return median(e.claims->scores);
}

std::string gain_interval(const ExternalSpec& spec, const std::optional<Interval>& ratio) {
  if (!ratio) return "–";
  const bool turned = !spec.ratio && spec.minimize;  // less is better: the ends change places
  return fmt::format("{} ({}..{})", gain_text(spec, ratio->mid),
                     gain_text(spec, turned ? ratio->high : ratio->low),
                     gain_text(spec, turned ? ratio->low : ratio->high));
}

std::string external_gain_text(const RunView& v) {
  const ExternalSpec& spec = *v.meta.external;
  const Evaluation *start = of_final(v, v.start), *best = of_final(v, v.winner);
  const std::string metric = v.meta.shapes[0].name;
  if (v.winner == v.start || best == nullptr || start == nullptr)
    return fmt::format(
        "Nothing was gained over {}: no other program is shown to have a better {}. {}", file_of(v),
        metric, spec.judged() ? kJudged : "Scores are what the user's evaluator claims.");
  return fmt::format(
      "The evolved program has a {} of {}; {} has {}: {} (95 % interval). {}", metric,
      number(claimed_score(*best)), file_of(v), number(claimed_score(*start)),
      gain_interval(spec, ratio_of(v, *v.final, v.start, v.winner)),
      spec.judged() ? kJudged
                    : "Scores are what the user's evaluator claims; the interval over its repeats "
                      "is ours.");
}

std::string external_heading(const RunView& v) {
  const ExternalSpec& spec = *v.meta.external;
  return fmt::format("<h1>Attune: {} evolved by {}{}</h1>\n<p class=\"soft\">{} · {} · {}</p>\n",
                     escape(file_of(v)), spec.judged() ? "its " : "the ",
                     escape(v.meta.shapes[0].name) + (spec.judged() ? "" : " of an evaluator"),
                     spec.judged() ? escape(spec.what()) : code(spec.what()),
                     escape(v.meta.machine), escape(v.meta.created));
}

std::string external_comparison(const RunView& v, const Comparison& c, const std::string& caption) {
  Table table(caption,
              {"program", v.meta.external->judged() ? "score (measured)" : "score (claimed)",
               "over the first", "evaluations", "seconds each", "verdict"},
              "lnnnnl");
  for (int k = 0; k < int(c.candidates.size()); ++k) {
    const Evaluation e = size_t(k) < c.verdicts.size() ? c.verdicts[size_t(k)] : Evaluation{};
    const Claims claims = e.claims.value_or(Claims{});
    table.raw_row({code(c.candidates[size_t(k)].id), number(claimed_score(e)),
                   k == 0 ? "–" : escape(gain_interval(*v.meta.external, ratio_of(v, c, 0, k))),
                   fmt::format("{}", claims.scores.size()), html::duration(mean(claims.seconds)),
                   escape(verdict_name(e.verdict))});
  }
  return table.html();
}

namespace {

std::string claims_table(const RunView& v, const std::string& caption) {
  std::vector<const Record*> ranked;
  for (const Record& r : v.records)
    if (r.evaluation.claims) ranked.push_back(&r);
  std::stable_sort(ranked.begin(), ranked.end(), [](const Record* a, const Record* b) {
    return a->outcome.ok != b->outcome.ok ? a->outcome.ok : a->outcome.fitness > b->outcome.fitness;
  });
  Table table(caption, {"n", "program", "scores", "metrics", "seconds", "verdict"}, "nlllnl");
  for (size_t i = 0; i < std::min(ranked.size(), kMostClaims); ++i) {
    const Record& r = *ranked[i];
    const Claims& claims = *r.evaluation.claims;
    std::string scores, metrics;
    for (const double score : claims.scores) scores += (scores.empty() ? "" : ", ") + number(score);
    size_t shown = 0;
    for (const auto& [name, value] : claims.metrics) {
      if (shown++ == kMostMetrics) {
        metrics += fmt::format(", {} more", claims.metrics.size() - kMostMetrics);
        break;
      }
      metrics += fmt::format("{}{} {:.6g}", metrics.empty() ? "" : ", ", name, value);
    }
    table.raw_row({fmt::format("{}", r.proposal.n), code(r.candidate.id), escape(scores),
                   html::long_text(metrics), html::duration(mean(claims.seconds)),
                   escape(verdict_name(r.evaluation.verdict))});
  }
  return table.empty() ? paragraph("None was evaluated.") : table.html();
}

// Of Attune's judge of torch modules: none of it is a claim.
std::string judged_section(const RunView& v) {
  const ExternalSpec& spec = *v.meta.external;
  return html::section(
      "claims", "What the judge measured",
      paragraph(fmt::format(
          "All numbers are ours. Attune's judge ran each module in a sandbox beside the reference, "
          "{}, on fresh inputs and the same weights, compared every result with it and with "
          "float64, and timed the two in turns. The score is the speed over the reference.",
          reference_of(spec))) +
          claims_table(v, "The best by their scores, with what the judge measured"));
}

}  // namespace

std::string claims_section(const RunView& v) {
  const ExternalSpec& spec = *v.meta.external;
  if (spec.judged()) return judged_section(v);
  std::string body = paragraph(
      "Claimed by the user's evaluator: every score, metric and artifact. It is the user's code "
      "and runs with the user's rights; nothing here checks it. Ours: the seconds, the number of "
      "repeats, the intervals, and the decisions that follow.");
  body += paragraph(fmt::format(
      "The evaluator: {}, sha256 {}; {} is to be {}, {}.", spec.what(), spec.hash.substr(0, 16),
      v.meta.shapes[0].name, spec.minimize ? "small" : "large",
      spec.ratio ? "scores are compared by their ratio"
                 : fmt::format("scores are compared by their difference in units of {:g}: \"as "
                               "fast\" on this page is e to the power of that",
                               spec.scale)));
  body += claims_table(v, "The best by their scores, with what the evaluator claimed");
  if (const Record* best = v.record(v.best_n); best != nullptr && best->evaluation.claims)
    for (const auto& [name, text] : best->evaluation.claims->artifacts)
      body += fmt::format("<p>Artifact {} of the best, as claimed:</p><pre>{}</pre>\n", code(name),
                          escape(html::shortened(text, kClaimLetters)));
  return html::section("claims", "What the evaluator claimed", body);
}

}  // namespace attune::evolve
