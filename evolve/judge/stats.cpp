#include "evolve/judge/stats.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace attune::evolve {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// No error is smaller: equal samples differ by rounding only, and that is no effect.
constexpr double kLeastError = 1e-14;
constexpr size_t kFewToTrim = 5;  // below this many, a trimmed mean has no error to speak of
// A process effect is one when it would be a rare accident of the pairs alone: an effect that is
// not there costs power, one that is not seen costs only time.
constexpr double kAccident = 0.02;
constexpr double kFarOff = 3;          // deviations: an interrupted call
constexpr double kNormalMad = 0.6745;  // of a normal distribution with deviation 1

// Logs of b / a of one shape, and its share of all weights.
struct Logs {
  std::vector<double> values;
  double weight = 0;
  size_t block = 1;
  bool sittings = false;
};

bool logs_of(std::span<const Pairs> shapes, std::vector<Logs>* logs) {
  double total = 0;
  for (const Pairs& shape : shapes) {
    if (!(shape.weight > 0)) continue;
    if (shape.a.empty() || shape.a.size() != shape.b.size()) return false;
    logs->push_back({{}, shape.weight, size_t(std::max(shape.block, 1)), in_sittings(shape)});
    for (size_t i = 0; i < shape.a.size(); ++i) {
      logs->back().values.push_back(std::log(shape.b[i] / shape.a[i]));
      if (!std::isfinite(logs->back().values.back())) return false;
    }
    total += shape.weight;
  }
  for (Logs& shape : *logs) shape.weight /= total;
  return !logs->empty();
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

double squares_about(std::span<const double> values, double middle) {
  double sum = 0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return sum;
}

// As many at each end do not count: calls that were interrupted are among them.
size_t trimmed(size_t count) { return (count + 1) / 4; }

double middle_half(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t off = trimmed(values.size());
  return mean_of(std::span(values).subspan(off, values.size() - 2 * off));
}

// The error of a trimmed mean follows from the deviations that are left when each value beyond the
// trim counts as the outermost one within (Tukey and McLaughlin).
Estimate of_pairs(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t count = values.size(), off = count < kFewToTrim ? 0 : trimmed(count),
               kept = count - 2 * off;
  Estimate e;
  e.mid = mean_of(std::span(values).subspan(off, kept));
  if (kept < 2) return e;
  std::fill_n(values.begin(), off, values[off]);
  std::fill_n(values.rbegin(), off, values[count - 1 - off]);
  e.error = std::sqrt(squares_about(values, mean_of(values)) / (double(kept) * double(kept - 1)));
  e.freedom = double(kept - 1);
  return e;
}

// Shapes are timed one after another: their errors are independent.
Estimate of_shapes(const std::vector<Logs>& shapes) {
  Estimate all;
  double variance = 0, uncertainty = 0;  // Welch and Satterthwaite
  bool enough = true;
  for (const Logs& shape : shapes) {
    const Estimate one = of_pairs(shape.values);
    all.mid += shape.weight * one.mid;
    enough = enough && one.freedom >= 2;
    const double v = std::pow(shape.weight * std::max(one.error, kLeastError), 2);
    variance += v;
    uncertainty += v * v / std::max(one.freedom, 1.0);
  }
  all.error = std::sqrt(variance);
  all.freedom = enough ? variance * variance / uncertainty : 0;
  return all;
}

// What lasts as long as a worker hits all shapes that it computes: a sitting is one number.
Estimate of_sittings(const std::vector<Logs>& shapes) {
  size_t count = std::numeric_limits<size_t>::max();
  for (const Logs& shape : shapes)
    count = std::min(count, (shape.values.size() + shape.block - 1) / shape.block);
  std::vector<double> sittings(count, 0.0);
  for (const Logs& shape : shapes)
    for (size_t n = 0; n < count; ++n) {
      const auto from = shape.values.begin() + std::ptrdiff_t(n * shape.block);
      const size_t pairs = std::min(shape.block, shape.values.size() - n * shape.block);
      sittings[n] += shape.weight * middle_half({from, from + std::ptrdiff_t(pairs)});
    }
  Estimate e;
  e.mid = mean_of(sittings);
  if (count < 2) return e;
  e.freedom = double(count - 1);
  e.error = std::max(kLeastError,
                     std::sqrt(squares_about(sittings, e.mid) / (e.freedom * double(count))));
  return e;
}

// The continued fraction of the incomplete beta function, by Lentz's method.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto nonzero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1, d = 1 / nonzero(1 - (a + b) * x / (a + 1)), product = d;
  for (int n = 1; n < 500; ++n) {
    const double m = n;
    for (const double term : {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                              -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))}) {
      d = 1 / nonzero(1 + term * d);
      c = nonzero(1 + term / c);
      product *= c * d;
    }
    if (std::abs(c * d - 1) < 1e-15) break;
  }
  return product;
}

// The regularised incomplete beta function.
double beta_below(double x, double a, double b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_quantile(double above, double freedom) {
  double low = 0, high = 1;
  while (student_above(high, freedom) > above && high < 1e15) high *= 2;
  for (int n = 0; n < 100 && low < high; ++n) {
    const double mid = 0.5 * (low + high);
    (student_above(mid, freedom) > above ? low : high) = mid;
  }
  return high;
}

// Values that an interruption put far off are moved to where a few deviations end.
void clip(std::vector<double>* values) {
  const double middle = median(*values);
  std::vector<double> off;
  for (const double value : *values) off.push_back(std::abs(value - middle));
  const double reach = kFarOff * median(std::move(off)) / kNormalMad;
  for (double& value : *values) value = std::clamp(value, middle - reach, middle + reach);
}

// One-way analysis of variance with random effects: sittings of `block` values.
double effect_of_processes(std::span<const double> values, size_t block) {
  const size_t sittings = block == 0 ? 0 : values.size() / block;
  if (sittings < 3 || block < 2) return kInfinity;
  std::vector<double> means;
  double within = 0;
  for (size_t n = 0; n < sittings; ++n) {
    const auto sitting = values.subspan(n * block, block);
    means.push_back(mean_of(sitting));
    within += squares_about(sitting, means.back());
  }
  const double free_between = double(sittings - 1), free_within = double(sittings * (block - 1));
  const double between = double(block) * squares_about(means, mean_of(means)) / free_between;
  within /= free_within;
  if (between <= within || fisher_above(between / within, free_between, free_within) > kAccident)
    return 0;
  return std::sqrt((between - within) / double(block));
}

}  // namespace

double student_above(double t, double freedom) {
  const double tail = 0.5 * beta_below(freedom / (freedom + t * t), 0.5 * freedom, 0.5);
  return t > 0 ? tail : 1 - tail;
}

double fisher_above(double f, double between, double within) {
  return beta_below(within / (within + between * f), 0.5 * within, 0.5 * between);
}

std::optional<Estimate> estimate_of(std::span<const Pairs> shapes) {
  std::vector<Logs> logs;
  if (!logs_of(shapes, &logs)) return std::nullopt;
  const bool sittings =
      std::any_of(logs.begin(), logs.end(), [](const Logs& shape) { return shape.sittings; });
  return sittings ? of_sittings(logs) : of_shapes(logs);
}

Interval combined_ratio(std::span<const Pairs> shapes, double confidence) {
  const std::optional<Estimate> e = estimate_of(shapes);
  if (!e) return {0, 1, kInfinity};
  if (e->freedom < 2) return {0, std::exp(e->mid), kInfinity};
  const double reach = e->error * student_quantile(0.5 * (1 - confidence), e->freedom);
  return {std::exp(e->mid - reach), std::exp(e->mid), std::exp(e->mid + reach)};
}

double p_not_above(std::span<const Pairs> shapes, double margin) {
  const std::optional<Estimate> e = estimate_of(shapes);
  const double bar = std::log1p(margin);
  if (!e || !std::isfinite(bar) || e->freedom < 1) return 1;
  return student_above((e->mid - bar) / e->error, e->freedom);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

Noise noise_of(std::span<const Pairs> aa) {
  Noise noise;
  noise.ratio = combined_ratio(aa, kConfidence);
  noise.margin = kInfinity;
  std::vector<Logs> logs;
  if (!logs_of(aa, &logs)) return noise;
  size_t count = std::numeric_limits<size_t>::max();
  std::vector<double> deviations;
  for (Logs& shape : logs) {
    count = std::min(count, shape.values.size());
    const double middle = median(shape.values);
    for (const double value : shape.values) deviations.push_back(std::abs(value - middle));
    clip(&shape.values);
  }
  noise.spread = median(std::move(deviations));
  std::vector<double> rounds(count, 0.0);
  for (const Logs& shape : logs)
    for (size_t n = 0; n < count; ++n) rounds[n] += shape.weight * shape.values[n];
  // What lasts as long as a process is in every pair of two processes of its own.
  const bool fresh = logs[0].sittings && logs[0].block == 1;
  noise.margin = fresh ? 0 : std::expm1(effect_of_processes(rounds, logs[0].block));
  return noise;
}

}  // namespace attune::evolve
