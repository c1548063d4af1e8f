#include "evolve/report/proposers.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "evolve/report/html.hpp"

namespace attune::evolve {
namespace {

constexpr size_t kMostReasons = 100;
constexpr size_t kReasonLetters = 400;

std::string name_of(const Tally& t) { return t.who.empty() ? "files of persons or agents" : t.who; }

std::string cost_text(const Tally& t) {
  return t.cost_known ? fmt::format("{:.4f}", t.cost) : "unknown";
}

std::string tokens_text(const Tally& t, int64_t tokens) {
  return fmt::format("{}{}", t.estimated ? "about " : "", tokens);
}

}  // namespace

std::string proposers_section(const RunView& v, const Json& evidence) {
  if (v.tallies.empty()) return "";
  html::Table table(
      "Who was asked. Applied: became a candidate; not applied: an edit did not match, or the "
      "program was no program; cheated: it changed what lies outside the markers. The gain is the "
      "product of the accepted steps",
      {"proposer", "questions", "requests", "failed", "tokens in", "tokens out", "USD", "waited",
       "applied", "not applied", "cheated", "known before", "correct", "accepted", "gain"},
      "lnnnnnnnnnnnnnn");
  const auto count = [](int64_t n) { return fmt::format("{}", n); };
  for (const Tally& t : v.tallies)
    table.row({name_of(t), count(t.questions), count(t.requests), count(t.failed),
               tokens_text(t, t.tokens_in), tokens_text(t, t.tokens_out), cost_text(t),
               html::duration(t.seconds), count(t.applied), count(t.not_applied), count(t.cheated),
               count(t.duplicates), count(t.ok), count(t.accepted), html::times(std::exp(t.gain))});
  std::map<std::pair<std::string, std::string>, int64_t> reasons;
  if (const auto all = evidence.find("exchanges"); all != evidence.end())
    for (const Json& e : *all) {
      const std::string error = e.value("error", ""), why = e.value("why", "");
      if (!error.empty() || !why.empty())
        ++reasons[{e.value("outcome", ""), error.empty() ? why : error}];
    }
  html::Table failures("What could not be used, and why", {"outcome", "times", "why"}, "lnl");
  size_t rows = 0;
  for (const auto& [reason, times] : reasons)
    if (rows++ < kMostReasons)
      failures.raw_row({html::escape(reason.first), count(times),
                        html::long_text(html::shortened(reason.second, kReasonLetters))});
  return html::section("proposers", "Proposals from models and persons",
                       table.html() + (failures.empty() ? "" : failures.html()));
}

std::string proposers_text(const std::vector<Tally>& tallies) {
  std::string text;
  for (const Tally& t : tallies)
    text += fmt::format(
        "{}{}: {} question{} ({} failed), {} + {} tokens, {}; {} applied, {} not, {} cheated; {} "
        "correct, {} accepted, gain {:.2f}x",
        text.empty() ? "" : "\n", name_of(t), t.questions, t.questions == 1 ? "" : "s", t.failed,
        tokens_text(t, t.tokens_in), t.tokens_out,
        t.cost_known ? fmt::format("{:.4f} USD", t.cost) : "cost unknown", t.applied,
        t.not_applied + t.duplicates, t.cheated, t.ok, t.accepted, std::exp(t.gain));
  return text;
}

}  // namespace attune::evolve
