// What the multiply-add units can do at most: the yardstick of the benchmarks.
#if defined(ATTUNE_SRC_CPU_PEAK_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_PEAK_INL_HPP_
#undef ATTUNE_SRC_CPU_PEAK_INL_HPP_
#else
#define ATTUNE_SRC_CPU_PEAK_INL_HPP_
#endif

#include <algorithm>
#include <chrono>

#include "src/cpu/vector_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

// Enough independent multiply-adds to fill both pipes for their whole latency, nothing else.
double PeakFlops(double seconds) {
  constexpr int kChains = kRegisters == 32 ? 24 : 12;
  constexpr int kSteps = 20000;
  const Floats d;
  FloatVec acc[kChains];
  for (auto& x : acc) x = hn::Set(d, 1.0f);
  auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double best = 0;
  do {
    const auto t0 = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
      for (int c = 0; c < kChains; ++c) acc[c] = hn::MulAdd(acc[c], a, b);
    }
    const double took = std::chrono::duration<double>(Clock::now() - t0).count();
    best = std::max(best, 2.0 * kLanes * kChains * kSteps / took);
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds);
  // The result must be seen to be used, or the compiler drops the loop.
  auto sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = hn::Add(sum, acc[c]);
  volatile float sink = hn::GetLane(sum);
  (void)sink;
  return best;
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
