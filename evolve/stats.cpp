#include "evolve/stats.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "src/check/random.hpp"

namespace attune::evolve {
namespace {

constexpr int kResamples = 2000;
constexpr size_t kExactPairs = 12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Logs of b / a of one shape, and its share of all weights.
struct Logs {
  std::vector<double> values;
  double weight = 0;
  int block = 1;
};

// False when there is nothing to compute with: no pairs, or one without a finite ratio. Such
// samples support no claim, so nothing is concluded from the rest either.
bool logs_of(std::span<const double> a, std::span<const double> b, std::vector<double>* logs) {
  if (a.empty() || a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    logs->push_back(std::log(b[i] / a[i]));
    if (!std::isfinite(logs->back())) return false;
  }
  return true;
}

bool logs_of(std::span<const Pairs> shapes, std::vector<Logs>* logs) {
  double total = 0;
  for (const Pairs& shape : shapes) {
    if (!(shape.weight > 0)) continue;
    logs->push_back({{}, shape.weight, shape.block});
    if (!logs_of(shape.a, shape.b, &logs->back().values)) return false;
    total += shape.weight;
  }
  for (Logs& shape : *logs) shape.weight /= total;
  return !logs->empty();
}

double median_of_sorted(const std::vector<double>& x) {
  return 0.5 * (x[(x.size() - 1) / 2] + x[x.size() / 2]);
}

// Draws from sorted values with replacement. How often each was drawn is enough to walk to the
// middle of the draw: nothing has to be sorted again.
class Resampler {
 public:
  explicit Resampler(const std::vector<double>& sorted) : sorted_(sorted), drawn_(sorted.size()) {}

  double draw_median(check::Random* random) {
    const uint64_t n = sorted_.size();
    std::fill(drawn_.begin(), drawn_.end(), 0u);
    for (uint64_t i = 0; i < n; i += 2) {
      const uint64_t bits = random->bits();
      ++drawn_[(bits >> 32) * n >> 32];
      if (i + 1 < n) ++drawn_[(bits & 0xffffffffu) * n >> 32];
    }
    size_t at = 0;
    uint64_t passed = drawn_[0];
    while (passed <= (n - 1) / 2) passed += drawn_[++at];
    const double lower = sorted_[at];
    while (passed <= n / 2) passed += drawn_[++at];
    return 0.5 * (lower + sorted_[at]);
  }

 private:
  const std::vector<double>& sorted_;
  std::vector<uint32_t> drawn_;
};

// Whole blocks are drawn, the same for every shape: what lasts as long as a worker hits all that it
// computes.
double draw_blocks(const std::vector<Logs>& shapes, size_t blocks, check::Random* random) {
  std::vector<size_t> drawn(blocks);
  for (size_t& b : drawn) b = size_t((random->bits() >> 32) * blocks >> 32);
  double mean = 0;
  for (const Logs& shape : shapes) {
    std::vector<double> values;
    for (const size_t b : drawn)
      for (size_t i = b * size_t(shape.block);
           i < std::min((b + 1) * size_t(shape.block), shape.values.size()); ++i)
        values.push_back(shape.values[i]);
    std::sort(values.begin(), values.end());
    mean += shape.weight * median_of_sorted(values);
  }
  return mean;
}

Interval interval_of(std::vector<Logs> shapes, double confidence, uint64_t seed) {
  double mid = 0;
  size_t blocks = std::numeric_limits<size_t>::max();
  bool in_blocks = false;
  for (const Logs& shape : shapes) {
    const size_t block = size_t(std::max(shape.block, 1));
    blocks = std::min(blocks, (shape.values.size() + block - 1) / block);
    in_blocks = in_blocks || block > 1;
    std::vector<double> sorted = shape.values;
    std::sort(sorted.begin(), sorted.end());
    mid += shape.weight * median_of_sorted(sorted);
  }
  if (blocks < 3) return {0, std::exp(mid), kInfinity};

  std::vector<double> means(kResamples, 0.0);
  check::Random random(seed);
  if (in_blocks)
    for (double& mean : means) mean = draw_blocks(shapes, blocks, &random);
  else
    for (Logs& shape : shapes) {
      std::sort(shape.values.begin(), shape.values.end());
      Resampler resampler(shape.values);
      for (double& mean : means) mean += shape.weight * resampler.draw_median(&random);
    }
  std::sort(means.begin(), means.end());
  // Outwards to whole ranks: an interval is never narrower than asked for.
  const double tail = std::clamp((1 - confidence) / 2, 0.0, 0.5) * (kResamples - 1);
  const size_t low = size_t(std::floor(tail));
  return {std::exp(means[low]), std::exp(mid), std::exp(means[kResamples - 1 - low])};
}

// Sums of terms under sign patterns, eight terms a look-up.
class SignedSums {
 public:
  explicit SignedSums(const std::vector<double>& terms) : tables_((terms.size() + 7) / 8) {
    for (size_t i = 0; i < terms.size(); ++i)
      for (size_t signs = 0; signs < 256; ++signs)
        tables_[i / 8][signs] += signs >> i % 8 & 1 ? -terms[i] : terms[i];
  }

  size_t words() const { return (tables_.size() + 7) / 8; }
  double operator()(const std::vector<uint64_t>& signs) const {
    double sum = 0;
    for (size_t t = 0; t < tables_.size(); ++t) sum += tables_[t][signs[t / 8] >> t % 8 * 8 & 255];
    return sum;
  }

 private:
  std::vector<std::array<double, 256>> tables_;
};

}  // namespace

Interval combined_ratio(std::span<const Pairs> shapes, double confidence, uint64_t seed) {
  std::vector<Logs> logs;
  if (!logs_of(shapes, &logs)) return {0, 1, kInfinity};
  return interval_of(std::move(logs), confidence, seed);
}

double p_not_above(std::span<const Pairs> shapes, double margin, uint64_t seed, int rounds) {
  std::vector<Logs> logs;
  const double bar = std::log1p(margin);
  if (!std::isfinite(bar) || !logs_of(shapes, &logs)) return 1;
  std::vector<double> terms;
  double magnitude = 0;
  for (const Logs& shape : logs)
    for (double value : shape.values) {
      terms.push_back(shape.weight / double(shape.values.size()) * (value - bar));
      magnitude += std::abs(terms.back());
    }

  const SignedSums sums(terms);
  std::vector<uint64_t> signs(sums.words(), 0);
  // Patterns whose sums are equal but for rounding count as equal.
  const double reached = sums(signs) - 1e-12 * magnitude;
  int64_t as_large = 0;
  if (terms.size() <= kExactPairs) {
    const uint64_t patterns = uint64_t{1} << terms.size();
    for (signs[0] = 0; signs[0] < patterns; ++signs[0]) as_large += sums(signs) >= reached;
    return double(as_large) / double(patterns);
  }
  check::Random random(seed);
  for (int round = 0; round < rounds; ++round) {
    for (uint64_t& word : signs) word = random.bits();
    as_large += sums(signs) >= reached;
  }
  return double(as_large + 1) / double(rounds + 1);  // the pattern observed is one of them
}

std::vector<double> holm(std::span<const double> p) {
  const auto value = [&](size_t i) { return std::isnan(p[i]) ? 1.0 : p[i]; };
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t x, size_t y) { return std::pair(value(x), x) < std::pair(value(y), y); });
  std::vector<double> adjusted(p.size());
  double largest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    largest = std::max(largest, std::min(1.0, double(order.size() - rank) * value(order[rank])));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return median_of_sorted(values);
}

Noise noise_of(std::span<const Pairs> aa, uint64_t seed) {
  Noise noise;
  noise.ratio = combined_ratio(aa, 0.95, seed);
  noise.margin = std::max((noise.ratio.high - noise.ratio.low) / 2, std::abs(noise.ratio.mid - 1));
  std::vector<Logs> logs;
  if (!logs_of(aa, &logs)) return noise;
  std::vector<double> deviations;
  for (const Logs& shape : logs) {
    const double middle = median(shape.values);
    for (double value : shape.values) deviations.push_back(std::abs(value - middle));
  }
  noise.spread = median(std::move(deviations));
  return noise;
}

}  // namespace attune::evolve
