// Random numbers of the cases: the same on every machine, from a seed.
#pragma once

#include <cmath>
#include <cstdint>

namespace attune::check {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0xd1342543de82ef95u + 0x2545f4914f6cdd1du) {}

  // SplitMix64.
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  float uniform() { return float(bits() >> 40) * 0x1p-24f; }  // [0, 1)
  bool chance(float p) { return uniform() < p; }
  int64_t below(int64_t n) { return int64_t(bits() % uint64_t(n)); }

  // N(0,1), by Box and Muller.
  float normal() {
    const float radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.2831853f * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace attune::check
