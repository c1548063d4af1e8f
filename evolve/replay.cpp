// A recorded run held against itself: do its numbers follow from its samples, its acceptances from
// its numbers, and its proposals from its seed and its acceptances?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "evolve/run.hpp"
#include "evolve/standing.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {

Status restore(const std::vector<Record>& records, Driver* driver, Standing* standing) {
  for (const Record& r : records) {
    const std::optional<Proposal> again = driver->next(r.progress);
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

// The judge draws its seeds in secret, so the same samples give a little different numbers here.
//
// A bound of an interval is one of 2000 resamples by rank: 50 at 95 %, give or take 7. At 99.5 % it
// is the 5th, give or take 2, at 87 % the 130th, give or take 11: both are six deviations off.
constexpr double kWide = 0.995, kNarrow = 0.87;
constexpr double kRounding = 1e-9;  // of the middle, which no seed enters
constexpr uint64_t kSeed = 1;

bool same(double a, double b) { return std::abs(a - b) <= kRounding * std::abs(b); }
bool at_most(double a, double b) { return a <= b || same(a, b); }

bool within(const Interval& recorded, const std::vector<Pairs>& pairs) {
  const Interval wide = combined_ratio(pairs, kWide, kSeed),
                 narrow = combined_ratio(pairs, kNarrow, kSeed);
  return same(recorded.mid, wide.mid) && at_most(wide.low, recorded.low) &&
         at_most(recorded.low, narrow.low) && at_most(narrow.high, recorded.high) &&
         at_most(recorded.high, wide.high);
}

// A p-value is the share of 20000 patterns: six deviations of the difference of two such shares,
// and a few patterns where that is next to nothing.
double tolerance(double p) { return 6 * std::sqrt(2 * p / 20000) + 6.0 / 20000; }

// What a candidate had to be better by. Not known before the noise was measured, which a run does
// anew in each sitting.
std::optional<double> margin_at(const Json& margins, int64_t n) {
  std::optional<double> margin;
  for (const Json& entry : margins)
    if (entry.at(0).get<int64_t>() <= n)
      margin = entry.at(1).is_null() ? std::nullopt : std::optional(number_of(entry.at(1)));
  return margin;
}

// What is wrong with the numbers of a record; empty: they follow from its samples.
std::string contradiction(const Record& r, const RunMeta& meta, std::optional<double> margin) {
  const Evaluation& e = r.evaluation;
  if (!e.ok() || r.proposal.n == 0) return "";
  std::vector<Pairs> pairs;
  for (size_t s = 0; s < e.shapes.size(); ++s) {
    if (s >= meta.shapes.size() || e.shapes[s].shape != meta.shapes[s].name)
      return fmt::format("has samples of {}, which is not a shape of the run", e.shapes[s].shape);
    pairs.push_back({e.shapes[s].candidate, e.shapes[s].incumbent, meta.shapes[s].weight});
  }
  if (pairs.size() != meta.shapes.size()) return "lacks the samples of a shape";
  if (!within(e.speedup, pairs)) {
    const Interval own = combined_ratio(pairs, 0.95, kSeed);
    return fmt::format(
        "is recorded as {:.6g} ({:.6g}..{:.6g}) times as fast; its samples say {:.6g} "
        "({:.6g}..{:.6g})",
        e.speedup.mid, e.speedup.low, e.speedup.high, own.mid, own.low, own.high);
  }
  if (e.stage != Stage::measure) return "";
  // Without a margin the p-value is as small as it can be.
  const double p = p_not_above(pairs, margin.value_or(0), kSeed);
  const bool too_small = e.p<p - tolerance(p), too_large = e.p> p + tolerance(p);
  if (!too_small && !(margin && too_large)) return "";
  return fmt::format("is recorded with p = {:.3g}; its samples say {:.3g}", e.p, p);
}

Status check(const std::vector<Record>& records, const Store& store) {
  Standing standing;
  const Json margins = store.get("margins");
  for (const Record& recorded : records) {
    const int64_t n = recorded.proposal.n;
    const auto refuse = [&](const std::string& why) {
      return Status{ATTUNE_INTERNAL, fmt::format("evaluation {} {}: the database was changed, or "
                                                 "the run was made by another version",
                                                 n, why)};
    };
    if (standing.has_incumbent() && !recorded.incumbent.empty() &&
        recorded.incumbent != standing.incumbent().id)
      return refuse(fmt::format("was held against {}, and the best before it is {}",
                                recorded.incumbent, standing.incumbent().id));
    if (const std::string why = contradiction(recorded, store.meta(), margin_at(margins, n));
        !why.empty())
      return refuse(why);
    Record again = recorded;
    standing.judge(&again);
    if (again.outcome.ok != recorded.outcome.ok ||
        again.outcome.improved != recorded.outcome.improved ||
        again.outcome.fitness != recorded.outcome.fitness)
      return refuse("is judged differently now");
  }
  return {};
}

}  // namespace

Status replay(const std::string& folder, const Space& space, int64_t* evaluations) try {
  std::unique_ptr<Store> store;
  ATTUNE_TRY(Store::open(folder, false, &store));
  std::vector<Record> records;
  ATTUNE_TRY(store->records(&records));
  *evaluations = int64_t(records.size());
  Driver driver(store->meta(), space);
  if (!driver.known())
    return Status::invalid(fmt::format("there is no strategy '{}'", store->meta().strategy));
  ATTUNE_TRY(check(records, *store));
  Standing standing;
  return restore(records, &driver, &standing);
} catch (const Json::exception& error) {
  return Status::invalid(
      fmt::format("{}: a part of the run cannot be read ({})", folder, error.what()));
}

}  // namespace attune::evolve
