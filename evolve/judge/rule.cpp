#include "evolve/judge/rule.hpp"

#include <algorithm>
#include <cmath>

namespace attune::evolve {
namespace {

// The first measurement. tests/evolve/rule_test.cpp simulates what these numbers lead to.
constexpr int kGlance = 3;             // pairs that show what is far too slow
constexpr double kFarTooSlow = 0.7;    // each of them
constexpr double kSlower = 0.16;       // a p-value of being as fast: the race is lost
constexpr double kPromising = 0.25;    // a p-value that is worth more pairs
constexpr double kLikely = 0.1;        // the same, when twice as many are there
constexpr double kSignificant = 0.05;  // after four times as many: worth a confirmation
constexpr int kFewestPairs = 14;       // before time ends it
constexpr double kObvious = 1.5;       // a ratio that is worth a confirmation at once,
constexpr double kCertain = 1e-3;      // by a p-value of being above it

// The confirmation.
constexpr int kMostSittings = 16, kFewestSittings = 8;
constexpr int kObviousSittings = 5;  // where the gain is far beyond what pairs vary by
constexpr double kFarBeyond = 2;     // times as much
constexpr int kMostPairs = 8, kFewestPairsASitting = 3;
constexpr double kSeconds = 20;  // of a whole one, where fewer sittings and pairs can save time
constexpr double kReach = 7;     // standard errors that the expected gain should be away from 0
// After so many sittings a p-value above that is futile.
constexpr struct {
  int sittings;
  double p;
} kFutile[] = {{3, 0.3}, {4, 0.25}, {6, 0.15}, {8, 0.1}, {12, 0.05}};

// The run.
// Of the 5 % that a run may have. The rest is for the test itself, where nothing is normal: with
// two kinds of processes, equally frequent and far apart, Student's t is wrong up to 1.6 times as
// often.
constexpr double kErrorRate = 0.03;
constexpr double kEven = 10;  // so many confirmations have about the same share

int pairs_of(std::span<const Pairs> shapes) { return shapes.empty() ? 0 : int(shapes[0].a.size()); }

bool far_too_slow(std::span<const Pairs> shapes) {
  double total = 0;
  for (const Pairs& shape : shapes) total += shape.weight;
  for (size_t n = 0; n < shapes[0].a.size(); ++n) {
    double log = 0;
    for (const Pairs& shape : shapes)
      log += shape.weight / total * std::log(shape.b[n] / shape.a[n]);
    if (!(log < std::log(kFarTooSlow))) return false;
  }
  return true;
}

bool race_lost(std::span<const Pairs> pairs) {
  const std::optional<Estimate> e = estimate_of(pairs);
  return !e || (e->freedom >= 1 && student_above(-e->mid / e->error, e->freedom) < kSlower);
}

// Nothing (0..inf) where one of them was not timed on every shape.
Interval ratio_of(const Comparison& c, const std::vector<TimedShape>& shapes, size_t faster,
                  size_t slower, double confidence) {
  std::vector<Pairs> pairs;
  for (size_t s = 0; s < shapes.size(); ++s) {
    if (s >= c.seconds[faster].size() || s >= c.seconds[slower].size())
      return combined_ratio({}, 0);
    pairs.push_back({c.seconds[faster][s], c.seconds[slower][s], shapes[s].weight, c.sitting});
  }
  return combined_ratio(pairs, confidence);
}

}  // namespace

bool obvious(std::span<const Pairs> pairs) { return p_not_above(pairs, kObvious - 1) < kCertain; }

Next after_pair(std::span<const Pairs> pairs, double margin, const EvaluatorOptions& options,
                bool late) {
  const int n = pairs_of(pairs), full = options.full_pairs;
  if (n == kGlance && far_too_slow(pairs)) return Next::give_up;
  if (n >= options.race_pairs && n < full && race_lost(pairs)) return Next::give_up;
  if (n >= options.race_pairs && obvious(pairs)) return Next::confirm;
  late = late && n >= kFewestPairs;
  if (n < full && !late) return Next::more;
  const bool last = n >= 4 * full;
  const double enough = last ? kSignificant : n == 2 * full ? kLikely : kPromising;
  if (p_not_above(pairs, margin) >= enough) return Next::give_up;
  return last || late ? Next::confirm : Next::more;
}

Confirmation confirmation_of(std::span<const Pairs> first, double start_seconds,
                             double pair_seconds) {
  const double least = start_seconds + kFewestPairsASitting * pair_seconds;
  const int fewest = obvious(first) ? kObviousSittings : kFewestSittings;
  Confirmation plan;
  plan.sittings =
      int(std::clamp(kSeconds / std::max(least, 1e-9), double(fewest), double(kMostSittings)));
  double pairs = kMostPairs;
  if (const std::optional<Estimate> e = estimate_of(first); e && e->freedom >= 1) {
    // What the gain is at least likely to be, in deviations of one pair.
    const double gain = (e->mid - e->error) / (e->error * std::sqrt(double(pairs_of(first))));
    if (gain > kFarBeyond && obvious(first)) plan.sittings = kObviousSittings;
    if (gain > 0) pairs = std::min(pairs, std::pow(kReach / gain, 2) / plan.sittings);
  }
  pairs =
      std::min(pairs, (kSeconds / plan.sittings - start_seconds) / std::max(pair_seconds, 1e-9));
  plan.pairs = int(std::ceil(std::max(pairs, double(kFewestPairsASitting))));
  return plan;
}

bool futile(std::span<const Pairs> sittings) {
  if (sittings.empty()) return true;
  const int count = pairs_of(sittings) / std::max(sittings[0].block, 1);
  for (const auto& look : kFutile)
    if (look.sittings == count) return p_not_above(sittings, 0) > look.p;
  return false;
}

double p_value(std::span<const Pairs> pairs) {
  const bool sittings = std::any_of(pairs.begin(), pairs.end(), in_sittings);
  return sittings ? p_not_above(pairs, 0) : 1;
}

double Spending::level() const {
  // The shares kEven / ((n + kEven - 1) (n + kEven)) of n = 1, 2, ... add up to 1.
  const double n = looks_ + 1;
  return kErrorRate * kEven / ((n + kEven - 1) * (n + kEven)) + passed_on_;
}

bool Spending::accepts(double p) {
  const double share = level();
  ++looks_;
  const bool accepted = p < share;
  passed_on_ = accepted ? share : 0;
  return accepted;
}

bool believed(const Evaluation& e, Spending* spending) {
  return e.ok() && e.stage == Stage::measure && e.sitting != 1 && spending->accepts(e.p);
}

size_t winner_of(const Comparison& c, const std::vector<TimedShape>& shapes,
                 const std::vector<size_t>& holders) {
  const size_t count = std::min({c.candidates.size(), c.verdicts.size(), c.seconds.size()});
  const double confidence = 1 - 0.05 / double(std::max<size_t>(count, 2) - 1);
  const auto timed = [&](size_t n) { return n < count && c.verdicts[n].ok(); };
  const auto over = [&](size_t n, size_t holder) {
    return ratio_of(c, shapes, n, holder, confidence);
  };
  size_t winner = holders.at(0);
  for (const size_t holder : holders)
    if (holder != winner && timed(holder) && (!timed(winner) || over(holder, winner).low > 1))
      winner = holder;
  const size_t held = winner;
  double best = 1;
  for (size_t n = 0; n < count; ++n) {
    if (n == held || !timed(n)) continue;
    if (!timed(held)) {  // what failed its check holds nothing
      if (!timed(winner) || over(n, winner).mid > 1) winner = n;
      continue;
    }
    const Interval ratio = over(n, held);
    if (!(ratio.low > 1 && ratio.mid > best)) continue;
    best = ratio.mid;
    winner = n;
  }
  return winner;
}

}  // namespace attune::evolve
