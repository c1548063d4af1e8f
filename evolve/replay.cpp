// A recorded run compared with itself: do its numbers follow from its samples, its acceptances from
// its numbers, its proposals from its seed and its acceptances, and its result from the samples of
// the comparisons at its end?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evolve/judge/final.hpp"
#include "evolve/run.hpp"
#include "evolve/standing.hpp"
#include "src/api/tensor_check.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {

namespace {

// The recorded answer once more: the same texts and the same genome must come of it.
Status answer_again(const std::vector<Record>& records, const Exchanges& exchanges,
                    const Learned& learned, GrowingSpace* space, Genome* genome) {
  const auto refuse = [&](const std::string& why) {
    return Status{ATTUNE_INTERNAL,
                  fmt::format("proposal {} was made of exchange {}, and {}: the run was made by "
                              "another version, or its database was changed",
                              learned.n, learned.k, why)};
  };
  const Exchange* e = exchanges.of(learned.k);
  if (e == nullptr) return refuse("there is none");
  if (space == nullptr) return refuse("this is no run of a program");
  if (e->parent < 0 || e->parent >= learned.n) return refuse("its parent came later");
  const Derived d = derive(*space, *e, space->grown(records[size_t(e->parent)].proposal.genome),
                           learned.news.label);
  if (!d.refusal.verdict.empty()) return refuse("it is refused now: " + d.refusal.why);
  if (to_json(Learned{learned.n, learned.k, d.news, d.form}) != to_json(learned))
    return refuse("other texts come of it now");
  *genome = d.genome;
  return space->learn(d.news);
}

}  // namespace

Status restore(const std::vector<Record>& records, const Exchanges& exchanges, Space* space,
               Driver* driver, Standing* standing) {
  auto* growing = dynamic_cast<GrowingSpace*>(space);
  for (const Record& r : records) {
    std::optional<Proposal> again;
    if (const auto used = exchanges.used.find(r.proposal.n); used != exchanges.used.end()) {
      Genome genome;
      ATTUNE_TRY(answer_again(records, exchanges, used->second, growing, &genome));
      again = driver->offer(r.progress, genome, exchanges.of(used->second.k)->op,
                            exchanges.of(used->second.k)->parent);
    } else {
      again = driver->next(r.progress);
    }
    if (!again || *again != r.proposal)
      return {ATTUNE_INTERNAL,
              fmt::format("proposal {} was {} by {}, and is {} now: the run was made by another "
                          "version, or its database was changed",
                          r.proposal.n, r.proposal.id, r.proposal.op, again ? again->id : "none")};
    standing->restore(r);
    driver->result(r);
  }
  return {};
}

namespace {

constexpr double kRounding = 1e-9;

bool same(double a, double b) { return a == b || std::abs(a - b) <= kRounding * std::abs(b); }
bool same(const Interval& a, const Interval& b) {
  return same(a.low, b.low) && same(a.mid, b.mid) && same(a.high, b.high);
}

// Rule 1 drew at random; what no seed entered is the middle of a speed-up.
double middle_by_rule_1(const std::vector<Pairs>& shapes) {
  double log = 0, total = 0;
  for (const Pairs& shape : shapes) {
    std::vector<double> logs;
    for (size_t n = 0; n < shape.a.size(); ++n) logs.push_back(std::log(shape.b[n] / shape.a[n]));
    log += shape.weight * median(std::move(logs));
    total += shape.weight;
  }
  return std::exp(log / total);
}

// What is wrong with the numbers of a record; empty: they follow from its samples.
std::string contradiction(const Record& r, const RunMeta& meta) {
  const Evaluation& e = r.evaluation;
  if (!e.ok() || r.proposal.n == 0) return "";
  std::vector<Pairs> pairs;
  for (size_t s = 0; s < e.shapes.size(); ++s) {
    if (s >= meta.shapes.size() || e.shapes[s].shape != meta.shapes[s].name)
      return fmt::format("has samples of {}, which is not a shape of the run", e.shapes[s].shape);
    if (e.shapes[s].candidate.empty() ||
        e.shapes[s].candidate.size() != e.shapes[s].incumbent.size())
      return "has samples that are no pairs";
    pairs.push_back(
        {e.shapes[s].candidate, e.shapes[s].incumbent, meta.shapes[s].weight, e.sitting});
  }
  if (pairs.size() != meta.shapes.size()) return "lacks the samples of a shape";
  if (!estimate_of(pairs)) return "has samples that are no times";
  const bool older = meta.rule == 1;
  const Interval own =
      older ? Interval{0, middle_by_rule_1(pairs), 0} : combined_ratio(pairs, kConfidence);
  if (!(older ? same(e.speedup.mid, own.mid) : same(e.speedup, own)))
    return fmt::format(
        "is recorded as {:.6g} ({:.6g}..{:.6g}) times as fast; its samples say {:.6g}",
        e.speedup.mid, e.speedup.low, e.speedup.high, own.mid);
  if (older || e.stage != Stage::measure) return "";
  const double p = p_value(pairs);
  if (same(e.p, p)) return "";
  return fmt::format("is recorded with p = {:.3g}; its samples say {:.3g}", e.p, p);
}

// The text of every program that was judged is the one that its genome gives. The space has learned
// what proposers brought.
Status check_texts(const std::vector<Record>& records, const RunMeta& meta, const Space& space) {
  if (!meta.program) return {};
  for (const Record& r : records) {
    if (r.candidate.source.empty() || r.evaluation.source_hash.empty()) continue;
    const std::string own = jit::hex(jit::sha256(space.program(r.proposal.genome)));
    if (own != r.evaluation.source_hash)
      return {ATTUNE_INTERNAL,
              fmt::format("evaluation {} is recorded for a text with the hash {:.12}; its text has "
                          "{:.12}: the database was changed, or the run was made by another "
                          "version",
                          r.proposal.n, r.evaluation.source_hash, own)};
  }
  return {};
}

Status check(const std::vector<Record>& records, const Store& store) {
  Standing standing;
  for (const Record& recorded : records) {
    const int64_t n = recorded.proposal.n;
    const auto refuse = [&](const std::string& why) {
      return Status{ATTUNE_INTERNAL, fmt::format("evaluation {} {}: the database was changed, or "
                                                 "the run was made by another version",
                                                 n, why)};
    };
    if (standing.has_incumbent() && !recorded.incumbent.empty() &&
        recorded.incumbent != standing.incumbent().id)
      return refuse(fmt::format("was compared with {}, and the best before it is {}",
                                recorded.incumbent, standing.incumbent().id));
    if (const std::string why = contradiction(recorded, store.meta()); !why.empty())
      return refuse(why);
    if (store.meta().rule != kRule) {  // its acceptances are taken as they are
      if (recorded.outcome.ok != recorded.evaluation.ok() ||
          (recorded.outcome.ok && n > 0 &&
           recorded.outcome.fitness !=
               standing.fitness() + std::log(recorded.evaluation.speedup.mid)))
        return refuse("has a fitness that does not follow from its speed");
      standing.restore(recorded);
      continue;
    }
    Record again = recorded;
    standing.judge(&again);
    if (again.outcome.ok != recorded.outcome.ok ||
        again.outcome.improved != recorded.outcome.improved ||
        again.outcome.fitness != recorded.outcome.fitness)
      return refuse("is judged differently now");
  }
  return {};
}

// ---- what people read ----

// Where two values differ by more than rounding; empty: nowhere.
std::string difference(const Json& recorded, const Json& derived, const std::string& name) {
  if (recorded.is_number() && derived.is_number())
    return same(recorded.get<double>(), derived.get<double>()) ? "" : name;
  if (recorded.is_object() && derived.is_object() && recorded.size() == derived.size()) {
    for (const auto& [key, value] : derived.items()) {
      const auto at = recorded.find(key);
      if (at == recorded.end()) return name + "." + key;
      if (std::string inside = difference(*at, value, name + "." + key); !inside.empty())
        return inside;
    }
    return "";
  }
  if (recorded.is_array() && derived.is_array() && recorded.size() == derived.size()) {
    for (size_t n = 0; n < derived.size(); ++n)
      if (std::string inside = difference(recorded[n], derived[n], fmt::format("{}[{}]", name, n));
          !inside.empty())
        return inside;
    return "";
  }
  return recorded == derived ? "" : name;
}

// The best, by how much it is faster, and what may be promoted: as the samples of the comparisons
// at the end have it.
Status check_result(const Contents& run, const RunMeta& meta, const Space& space) {
  const auto value = [&](const char* name) {
    const auto at = run.values.find(name);
    return at == run.values.end() ? Json() : at->second;
  };
  const auto refuse = [](const std::string& why) {
    return Status{ATTUNE_INTERNAL,
                  why + ": the database was changed, or the run was made by another version"};
  };
  const auto comparison = [&](const char* name) {
    const Json json = value(name);
    return json.is_null() ? std::nullopt : std::optional(comparison_of(json));
  };
  const std::optional<Comparison> finalists = comparison("finalists"), final = comparison("final");
  const Json recorded = value("decision"), best = value("best"), json_noise = value("noise");
  const std::optional<Noise> noise =
      json_noise.is_null() ? std::nullopt : std::optional(noise_of(json_noise));
  if (const Json margins = value("margins"); noise && margins.is_array()) {
    Json last;
    for (const Json& entry : margins)
      if (!entry.at(1).is_null()) last = entry.at(1);
    if (!last.is_null() && !same(number_of(last), noise->margin))
      return refuse(
          fmt::format("the noise is recorded with a margin of {:.6g}, and candidates were "
                      "held to {:.6g}",
                      noise->margin, number_of(last)));
  }
  const std::optional<Decision> derived =
      decision_of(meta, run.records, finalists, final, noise, space);
  if (!derived) {
    if (!recorded.is_null())
      return refuse("there is a decision, and no comparison that it follows from");
    if (best.is_string() && (!final || place_of(*final, best.get<std::string>()) < 0))
      return refuse("the best was not in the final comparison");
    return {};
  }
  std::vector<std::string> ids = library_ids(space);
  ids.insert(ids.begin(), run.records[0].candidate.id);
  ids.push_back(derived->challenger);
  for (const std::string& id : ids)
    if (place_of(*final, id) < 0)
      return refuse(fmt::format("{} is missing in the final comparison", id));
  if (final->candidates[0].id != ids[0])
    return refuse("the final comparison does not begin with the start");
  if (const std::string where = difference(recorded, to_json(*derived), "decision"); !where.empty())
    return refuse(fmt::format(
        "{} is not what the samples of the final comparison say: they make {} the best, {}", where,
        derived->best,
        derived->over_library ? fmt::format("with {:.6g} ({:.6g}..{:.6g}) for {} over the library",
                                            derived->over_library->mid, derived->over_library->low,
                                            derived->over_library->high, derived->challenger)
                              : "with nothing to hold against the library"));
  if (best != derived->best)
    return refuse(
        fmt::format("the best is recorded as {}, and the samples of the final comparison "
                    "make it {}",
                    best.dump(), derived->best));
  return {};
}

}  // namespace

Status replay(const std::string& folder, Space& space, int64_t* evaluations) try {
  std::unique_ptr<Store> store;
  ATTUNE_TRY(Store::open(folder, false, &store));
  Contents run;
  ATTUNE_TRY(store->contents(&run));
  const std::vector<Record>& records = run.records;
  *evaluations = int64_t(records.size());
  Driver driver(store->meta(), space);
  if (!driver.known())
    return Status::invalid(fmt::format("there is no strategy '{}'", store->meta().strategy));
  if (store->meta().rule < 1 || store->meta().rule > kRule)
    return Status::invalid(fmt::format("{} was judged by rule {}, which this version does not know",
                                       folder, store->meta().rule));
  ATTUNE_TRY(check(records, *store));
  Standing standing;
  Exchanges exchanges;
  ATTUNE_TRY(read_exchanges(*store, &exchanges));
  ATTUNE_TRY(restore(records, exchanges, &space, &driver, &standing));
  ATTUNE_TRY(check_texts(records, store->meta(), space));
  return check_result(run, store->meta(), space);
} catch (const Json::exception& error) {
  return Status::invalid(
      fmt::format("{}: a part of the run cannot be read ({})", folder, error.what()));
}

}  // namespace attune::evolve
