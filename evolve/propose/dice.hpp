// Random numbers by counter: what proposal n draws depends on the run's seed and on n alone, never
// on what other proposals drew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tile/philox.h"

namespace attune::evolve {

class Dice {
 public:
  Dice(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  uint64_t bits() {
    const Philox4 r =
        philox4x32_10(uint32_t(count_), uint32_t(count_ >> 32), uint32_t(stream_),
                      uint32_t(stream_ >> 32), uint32_t(seed_), uint32_t(seed_ >> 32));
    ++count_;
    return uint64_t(r.word[1]) << 32 | r.word[0];
  }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }  // [0, 1)
  bool chance(double p) { return uniform() < p; }
  int64_t below(int64_t n) { return int64_t(uniform() * double(n)); }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[std::size_t(below(int64_t(from.size())))];
  }

 private:
  uint64_t seed_, stream_, count_ = 0;
};

}  // namespace attune::evolve
