// The rate of multiply-adds on registers alone: the ceiling that a kernel's rate is held against.
#pragma once

#include "../ptx/mma.h"

namespace attune {

constexpr int kPeakThreads = 256;
constexpr int kPeakTiles = 8;    // independent accumulators of a warp, so that no product waits
constexpr int kPeakChains = 16;  // the same of a thread on CUDA cores

// Numbers near 1 with many different bits: zeros would draw less power, and let the clock rise.
__device__ inline uint32_t peak_operand(uint32_t n, DType dtype) {
  const uint32_t bits = (threadIdx.x * 8 + n + 1) * 0x9e3779b9u;
  return dtype == DType::f16 ? (bits & 0x03ff03ffu) | 0x38003800u
                             : (bits & 0x007f007fu) | 0x3f003f00u;
}

// kPeakTiles products of 16x16 by 16x8 a warp and round.
template <DType T>
__device__ inline void peak_mma(float* sink, int rounds) {
  float c[kPeakTiles][4] = {};
  uint32_t a[4], b[2];
  for (uint32_t n = 0; n < 4; ++n) a[n] = peak_operand(n, T);
  for (uint32_t n = 0; n < 2; ++n) b[n] = peak_operand(4 + n, T) ^ 0x80000000u;  // sums stay small
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int tile = 0; tile < kPeakTiles; ++tile) {
      if constexpr (T == DType::f16)
        ptx::mma_m16n8k16_f16(c[tile], a, b[0], b[1]);
      else
        ptx::mma_m16n8k16_bf16(c[tile], a, b[0], b[1]);
    }
  }
  float sum = 0;
  for (const auto& tile : c)
    for (float x : tile) sum += x;
  if (sum == 12345.f) *sink = sum;  // so that the work is not for nothing
}

// kPeakChains multiply-adds a thread and round.
__device__ inline void peak_fma(float* sink, int rounds) {
  float x[kPeakChains];
#pragma unroll
  for (int n = 0; n < kPeakChains; ++n) x[n] = float(threadIdx.x + n) * 1e-3f;
  const float factor = 0.999f + 1e-7f * float(blockIdx.x), addend = 1e-3f;
#pragma unroll 4
  for (int round = 0; round < rounds; ++round)
#pragma unroll
    for (int n = 0; n < kPeakChains; ++n) x[n] = x[n] * factor + addend;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kPeakChains; ++n) sum += x[n];
  if (sum == 12345.f) *sink = sum;
}

}  // namespace attune
