// What samples say: ratios with their errors, tests, and what noise allows. Nothing here is random:
// the same samples always say the same.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace attune::evolve {

constexpr double kConfidence = 0.95;  // of every interval that is shown

struct Interval {
  double low = 0, mid = 0, high = 0;
};

// Paired samples of one shape, of the same length.
struct Pairs {
  std::vector<double> a, b;
  double weight = 1;
  int block = 1;  // so many neighbours come from the same two workers: a sitting
};
// As a block: each pair comes from two processes of its own, and is a sitting.
constexpr int kFresh = 0;
inline bool in_sittings(const Pairs& pairs) { return pairs.block != 1; }

// log(b / a), its standard error and the degrees of freedom of that; over several shapes the
// weighted mean. With sittings (in_sittings): the mean over the sittings, each the mean of the
// middle half of its pairs, so that what lasts as long as a process is part of the error.
// Otherwise: the mean of the middle half of all pairs, with the error of a trimmed mean.
struct Estimate {
  double mid = 0, error = 0, freedom = 0;  // freedom below 1: too few samples for an error
};
// Nothing where there are no pairs, or one has no finite ratio: such samples support no claim.
std::optional<Estimate> estimate_of(std::span<const Pairs> shapes);

// b / a with its Student interval. With fewer than 3 draws it is (0, mid, inf).
Interval combined_ratio(std::span<const Pairs> shapes, double confidence);

// One-sided p-value that b / a is not above 1 + margin, by Student's t.
double p_not_above(std::span<const Pairs> shapes, double margin);

// P(T > t) of Student's t, and P(F > f) of Fisher's F.
double student_above(double t, double freedom);
double fisher_above(double f, double between, double within);

double median(std::vector<double> values);  // not empty

// A/A: the same program as candidate and incumbent, in several sittings. Two processes of one
// program differ for as long as they live, which pairs of these two cannot show.
struct Noise {
  Interval ratio;
  double margin = 0;  // standard deviation of that difference; 0 where pairs alone explain it all
  double spread = 0;  // median absolute deviation of log(b / a)
};
Noise noise_of(std::span<const Pairs> aa);

}  // namespace attune::evolve
