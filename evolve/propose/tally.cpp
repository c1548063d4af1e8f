#include "evolve/propose/tally.hpp"

#include <algorithm>
#include <cmath>

namespace attune::evolve {
namespace {

constexpr double kWeightShare = 0.25;  // of the choices go by weight alone
constexpr double kPriorGain = 0.05;    // of the first question, before there is an answer

Tally& of(std::vector<Tally>* all, const Exchange& e) {
  const std::string who = e.op == "manual" ? "" : e.who;
  for (Tally& t : *all)
    if (t.op == e.op && t.who == who) return t;
  all->emplace_back();
  all->back().op = e.op;
  all->back().who = who;
  return all->back();
}

}  // namespace

std::vector<Tally> tallies_of(const Exchanges& exchanges, const std::vector<Record>& records) {
  std::vector<Tally> all;
  for (const Exchange& e : exchanges.all) {
    Tally& t = of(&all, e);
    ++t.questions;
    t.requests += e.tries;
    t.failed += !e.error.empty();
    t.answers += e.error.empty();
    t.tokens_in += e.tokens_in;
    t.tokens_out += e.tokens_out;
    t.estimated |= e.estimated;
    if (e.cost < 0)
      t.cost_known = false;
    else
      t.cost += e.cost;
    t.seconds += e.seconds;
    const auto refused = exchanges.refused.find(e.k);
    if (refused == exchanges.refused.end()) continue;
    const std::string& verdict = refused->second.verdict;
    (verdict == "cheated" ? t.cheated : verdict == "duplicate" ? t.duplicates : t.not_applied) += 1;
  }
  for (const auto& [n, learned] : exchanges.used) {
    const Exchange* e = exchanges.of(learned.k);
    if (e == nullptr) continue;
    Tally& t = of(&all, *e);
    ++t.applied;
    if (n >= int64_t(records.size())) continue;
    const Record& r = records[size_t(n)];
    ++t.judged;
    t.ok += r.outcome.ok;
    if (!r.outcome.improved) continue;
    ++t.accepted;
    t.gain += std::max(0.0, std::log(r.evaluation.speedup.mid));
  }
  return all;
}

Json to_json(const Tally& t) {
  return {{"op", t.op},
          {"who", t.who},
          {"questions", t.questions},
          {"requests", t.requests},
          {"failed", t.failed},
          {"tokens_in", t.tokens_in},
          {"tokens_out", t.tokens_out},
          {"tokens_estimated", t.estimated},
          {"cost", t.cost_known ? Json(t.cost) : Json()},
          {"seconds", t.seconds},
          {"answers", t.answers},
          {"applied", t.applied},
          {"not_applied", t.not_applied},
          {"cheated", t.cheated},
          {"duplicates", t.duplicates},
          {"judged", t.judged},
          {"ok", t.ok},
          {"accepted", t.accepted},
          {"gain", std::exp(t.gain)}};
}

Tally tally_of(const Json& json) {
  Tally t;
  const auto read = [&](const char* name, auto* value) { json.at(name).get_to(*value); };
  read("op", &t.op);
  read("who", &t.who);
  read("questions", &t.questions);
  read("requests", &t.requests);
  read("failed", &t.failed);
  read("tokens_in", &t.tokens_in);
  read("tokens_out", &t.tokens_out);
  read("tokens_estimated", &t.estimated);
  t.cost_known = !json.at("cost").is_null();
  if (t.cost_known) t.cost = number_of(json.at("cost"));
  t.seconds = number_of(json.at("seconds"));
  read("answers", &t.answers);
  read("applied", &t.applied);
  read("not_applied", &t.not_applied);
  read("cheated", &t.cheated);
  read("duplicates", &t.duplicates);
  read("judged", &t.judged);
  read("ok", &t.ok);
  read("accepted", &t.accepted);
  t.gain = std::log(number_of(json.at("gain")));
  return t;
}

std::vector<double> chances_of(const std::vector<ModelChoice>& models,
                               const std::vector<Tally>& tallies) {
  std::vector<Tally> own(models.size());
  for (size_t i = 0; i < models.size(); ++i)
    for (const Tally& t : tallies)
      if (t.op == "model" && t.who == models[i].name) own[i] = t;
  // One unit for all: dollars where each answer's cost is known, else questions.
  double cost = 0, questions = 0, weights = 0;
  bool by_cost = true;
  for (const Tally& t : own) {
    by_cost &= t.cost_known;
    cost += t.cost;
    questions += double(t.questions);
  }
  by_cost &= cost > 0;
  const double usual = by_cost ? cost / questions : 1;  // of one question
  std::vector<double> chances(models.size());
  double total = 0;
  for (size_t i = 0; i < models.size(); ++i) {
    const double spent = by_cost ? own[i].cost : double(own[i].questions);
    chances[i] = models[i].weight * (kPriorGain + own[i].gain) / (usual + spent);
    total += chances[i];
    weights += models[i].weight;
  }
  for (size_t i = 0; i < models.size(); ++i)
    chances[i] =
        (1 - kWeightShare) * chances[i] / total + kWeightShare * models[i].weight / weights;
  return chances;
}

size_t choose_model(const std::vector<ModelChoice>& models, const std::vector<Tally>& tallies,
                    Dice* dice) {
  const std::vector<double> chances = chances_of(models, tallies);
  double left = dice->uniform();
  for (size_t i = 0; i < chances.size(); ++i) {
    left -= chances[i];
    if (left < 0) return i;
  }
  return chances.size() - 1;
}

}  // namespace attune::evolve
