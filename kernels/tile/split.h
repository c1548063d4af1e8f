// fp32 numbers as pairs of fp16: hi = fp16(x) and lo = fp16(x - hi), 22 bits together. fp16 has few
// exponents, so numbers are first scaled by a power of two.
#pragma once

#include "number.h"

namespace attune {

__device__ inline float power_of_two(int exponent) {  // -126..127
  return __uint_as_float(uint32_t(exponent + 127) << 23);
}

// What brings `largest` (finite, not negative) to just below 2^15 (fp16 ends at 2^16), as a
// multiple of `step`: the higher, the more bits are left to numbers that are small beside it. V
// takes steps of 8, so that tiles of similar numbers share one, and O need not be scaled anew.
__device__ inline int exponent_for(float largest, int most, int step) {
  if (largest == 0) return 0;
  const int e = int(__float_as_uint(largest) >> 23) - 127;  // subnormals count as 2^-127
  const int wanted = (14 - e) & -step;                      // rounded down, also below 0
  return max(-most, min(most, wanted));
}

// Two numbers, scaled, into two registers: their hi parts and their lo parts.
__device__ inline void split_pair(float x, float y, uint32_t& hi, uint32_t& lo) {
  hi = pack<DType::f16>(x, y);
  lo = pack<DType::f16>(x - to_float<DType::f16>(uint16_t(hi)),
                        y - to_float<DType::f16>(uint16_t(hi >> 16)));
}

}  // namespace attune
