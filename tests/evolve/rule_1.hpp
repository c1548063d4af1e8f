// The rule that judged runs before rule 2, only to be compared with: the interval of 20 A/A pairs
// is a margin, a sign-flip test over pairs of one pair of workers must pass it, and Holm's
// correction is applied to what was looked at so far. It draws less often than it did, which
// changes no rate.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace attune::evolve::rule_1 {

using Logs = std::vector<double>;
inline std::mt19937_64& dice() {
  static std::mt19937_64 random(7);
  return random;
}

struct Bounds {
  double low, mid, high;
};
inline double middle(Logs x) {
  std::sort(x.begin(), x.end());
  return 0.5 * (x[(x.size() - 1) / 2] + x[x.size() / 2]);
}
// Percentile bootstrap of the median, of whole blocks.
inline Bounds interval(const Logs& logs, size_t block = 1) {
  const size_t blocks = logs.size() / block;
  Logs medians;
  for (int round = 0; round < 500; ++round) {
    Logs drawn;
    for (size_t n = 0; n < blocks; ++n) {
      const size_t from = dice()() % blocks * block;
      drawn.insert(drawn.end(), logs.begin() + long(from), logs.begin() + long(from + block));
    }
    medians.push_back(middle(drawn));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[12], middle(logs), medians[487]};
}
inline double p_not_above(const Logs& logs, double margin, int rounds = 4000) {
  Logs terms;
  for (const double log : logs) terms.push_back(log - std::log1p(margin));
  const double reached = std::accumulate(terms.begin(), terms.end(), -1e-12);
  int as_large = 0;
  for (int round = 0; round < rounds; ++round) {
    const uint64_t signs = dice()();
    double sum = 0;
    for (size_t n = 0; n < terms.size(); ++n) sum += signs >> n & 1 ? -terms[n] : terms[n];
    as_large += sum >= reached;
  }
  return double(as_large + 1) / (rounds + 1);
}
inline double margin_of(const Logs& aa) {
  const Bounds b = interval(aa);
  return std::max((std::exp(b.high) - std::exp(b.low)) / 2, std::abs(std::exp(b.mid) - 1));
}
// Holm's adjusted value of the last one.
inline double holm_of_last(const std::vector<double>& p) {
  std::vector<double> sorted = p;
  std::sort(sorted.begin(), sorted.end());
  double adjusted = 0;
  for (size_t n = 0; n < sorted.size() && sorted[n] <= p.back(); ++n)
    adjusted = std::max(adjusted, std::min(1.0, double(sorted.size() - n) * sorted[n]));
  return adjusted;
}

// `draw` gives so many logs of one pair of workers.
template <class Draw>
Logs measure(const Draw& draw, double margin) {
  Logs logs = draw(15);
  if (p_not_above(logs, margin) >= 0.2) return logs;
  const Logs more = draw(45);
  logs.insert(logs.end(), more.begin(), more.end());
  return logs;
}

struct Judge {
  double margin = 0;
  std::vector<double> looked_at;
  int64_t timed = 0, confirmed = 0;

  // `workers()` makes a Draw: a fresh pair of workers.
  template <class Workers>
  bool accepts(const Workers& workers) {
    const auto first = workers();
    const Logs race = first(5);
    timed += 5;
    if (interval(race).high < 0) return false;
    Logs logs = measure(first, margin);
    timed += int64_t(logs.size()) - 5;
    if (p_not_above(logs, margin) < 0.05) {
      logs = measure(workers(), margin);
      timed += int64_t(logs.size());
      ++confirmed;
    }
    double p = p_not_above(logs, margin);
    if (p < 1e-3) p = p_not_above(logs, margin, 100000);
    looked_at.push_back(p);
    return interval(logs).low > 0 && holm_of_last(looked_at) < 0.05;
  }
};

}  // namespace attune::evolve::rule_1
