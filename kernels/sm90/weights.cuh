// How large weights may become where a row keeps its first maximum, and what is computed of a
// thread's scores and weights.
#pragma once

#include "../ptx/math.h"

namespace attune {

// RowMaxima::first: where a row's first maximum stands below 1, in powers of two; the sum from
// which on the row's weights become smaller, and by how much. fp16 overflows at 2^16, and below
// 2^-14 it loses bits: from 2^-6 a row may grow by 2^22 at once, and what is 2^-8 of its first
// maximum has all its bits. (At 2^-8 the error of peaked rows was 1.28 times cuDNN's.) A sum
// reaches 2^8 by growth, or by 2^14 keys that are alike: those should keep their bits, so not
// earlier.
template <DType T, bool FirstMax>
struct Room {
  static constexpr bool kWide = T == DType::bf16;
  static constexpr float kBelow = kWide ? 0 : 6, kStep = kWide ? 60 : 8;
  static constexpr float kGrown = kWide ? 0x1p60f : 0x1p8f, kShrink = kWide ? 0x1p-60f : 0x1p-8f;
  static constexpr float kLeast = FirstMax && !kWide ? 0x1p-7f : .5f;  // of a row's sum
};

// The largest of a thread's numbers in each of its two rows, of even columns of eight and of odd
// ones: two chains are shorter than one.
template <int N>
__device__ inline void row_maxima(const float (&s)[N], float (&top)[2][2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r][0] = fmaxf(s[2 * r], s[2 * r + 1]);
    top[r][1] = fmaxf(s[2 * r + 4], s[2 * r + 5]);
  }
#pragma unroll
  for (int i = 8; i < N; i += 4)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      top[r][i / 4 & 1] = fmaxf(fmaxf(top[r][i / 4 & 1], s[i + 2 * r]), s[i + 2 * r + 1]);
}

// A row's sum over the four lanes that have it.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace attune
