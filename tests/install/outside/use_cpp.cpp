// Causal attention through attention.hpp, against the formula; and an error that arrives as an
// exception.
#include <attune/attention.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kHeads = 2, kSeq = 37, kDim = 16;

std::vector<float> wave(double step) {
  std::vector<float> x(kHeads * kSeq * kDim);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(step * double(i)));
  return x;
}

// One output element, in double.
double expected(const float* q, const float* k, const float* v, int row, int column) {
  double sum = 0, out = 0;
  for (int j = 0; j <= row; ++j) {
    double score = 0;
    for (int d = 0; d < kDim; ++d) score += double(q[row * kDim + d]) * k[j * kDim + d];
    const double weight = std::exp(score / std::sqrt(double(kDim)));
    sum += weight;
    out += weight * v[j * kDim + column];
  }
  return out / sum;
}

}  // namespace

int main() {
  const std::vector<float> q = wave(0.37), k = wave(0.61), v = wave(0.83);
  std::vector<float> out(q.size());
  attune::Args args;
  args.q = attune::tensor(q.data(), {1, kHeads, kSeq, kDim});
  args.k = attune::tensor(k.data(), {1, kHeads, kSeq, kDim});
  args.v = attune::tensor(v.data(), {1, kHeads, kSeq, kDim});
  args.out = attune::tensor(out.data(), {1, kHeads, kSeq, kDim});
  args.causal = 1;
  attune::forward(args);

  double worst = 0;
  for (int h = 0; h < kHeads; ++h) {
    const int at = h * kSeq * kDim;
    for (int i = 0; i < kSeq * kDim; ++i) {
      const double want = expected(q.data() + at, k.data() + at, v.data() + at, i / kDim, i % kDim);
      worst = std::fmax(worst, std::fabs(want - double(out[size_t(at + i)])));
    }
  }
  std::printf("attune %s from C++: worst error %.2g\n", attune_version(), worst);
  if (!(worst < 1e-5)) return 1;

  args.k.shape[3] = kDim - 1;
  try {
    attune::forward(args);
  } catch (const attune::Error& error) {
    return error.status() == ATTUNE_INVALID_ARGUMENT ? 0 : 1;
  }
  std::printf("a wrong head dimension was accepted\n");
  return 1;
}
