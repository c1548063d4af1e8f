// What the judge of CUDA programs asks the device itself: in which row two results differ most, and
// whether two pieces of memory are the same.
#pragma once

#include "../tile/number.h"

namespace attune {

constexpr int kCompareThreads = 256;
constexpr uint32_t kLanes = 32;

// The row of `ours` that lies farthest from `theirs`, as a part of the largest number of that row;
// a NaN is farther than any number. *worst begins at 0 and ends as distance << 32 | row. A warp
// takes a row at a time.
template <DType T>
__device__ inline void worst_row(const void* ours, const void* theirs, int64_t rows, int dim,
                                 unsigned long long* worst) {
  const uint32_t lane = threadIdx.x % kLanes;
  const int64_t warps = int64_t(gridDim.x) * blockDim.x / kLanes;
  int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  for (; row < rows; row += warps) {
    const Storage<T>* a = static_cast<const Storage<T>*>(ours) + row * dim;
    const Storage<T>* b = static_cast<const Storage<T>*>(theirs) + row * dim;
    float apart = 0, top = 1e-30f;
    for (int d = int(lane); d < dim; d += int(kLanes)) {
      const float x = to_float<T>(a[d]), y = to_float<T>(b[d]), distance = fabsf(x - y);
      apart = distance <= kInf ? fmaxf(apart, distance) : kInf;
      top = fmaxf(top, fabsf(y));
    }
    for (int step = int(kLanes) / 2; step > 0; step /= 2) {
      apart = fmaxf(apart, __shfl_xor_sync(~0u, apart, step));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    }
    const unsigned long long found =
        (unsigned long long)__float_as_uint(apart / top) << 32 | (unsigned long long)row;
    if (lane == 0 && found > *worst) atomicMax(worst, found);
  }
}

// *different becomes 1 where two words differ.
__device__ inline void same_words(const uint4* a, const uint4* b, int64_t words, int* different) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t n = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; n < words; n += step) {
    const uint4 x = a[n], y = b[n];
    if (((x.x ^ y.x) | (x.y ^ y.y) | (x.z ^ y.z) | (x.w ^ y.w)) != 0) *different = 1;
  }
}

}  // namespace attune
