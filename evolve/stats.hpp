// What samples say: intervals, tests, and what noise allows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attune::evolve {

struct Interval {
  double low = 0, mid = 0, high = 0;
};

// The ratio behind paired samples, as exp of the median of log(b / a), with its percentile
// bootstrap interval; over several shapes the weighted geometric mean. a and b have the same
// length, at least 1; with fewer than 3 draws the interval is (0, mid, inf).
struct Pairs {
  std::vector<double> a, b;
  double weight = 1;
  int block = 1;  // so many neighbours come from the same workers: they count as one draw
};
Interval combined_ratio(std::span<const Pairs> shapes, double confidence, uint64_t seed);

// One-sided p-value that b / a is not above 1 + margin: the share of sign patterns (all for up to
// 12 pairs, else `rounds` random ones) under which the mean of log(b / a) - log(1 + margin) is at
// least as large as it is. Exact under the null that the sign of each pair's difference is a coin.
double p_not_above(std::span<const Pairs> shapes, double margin, uint64_t seed, int rounds = 20000);

// Holm's step-down: adjusted p-values, in the order given.
std::vector<double> holm(std::span<const double> p);

double median(std::vector<double> values);  // not empty

// A/A: the same program as candidate and incumbent. `margin` is what a candidate must beat: the
// half width of the interval of the ratio of two equal programs, or how far it lies off 1.
struct Noise {
  Interval ratio;
  double margin = 0;
  double spread = 0;  // median absolute deviation of log(b / a)
};
Noise noise_of(std::span<const Pairs> aa, uint64_t seed);

}  // namespace attune::evolve
