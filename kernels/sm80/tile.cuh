// Tiles in shared memory for the tensor cores: how rows lie there, how they come from global
// memory.
#pragma once

#include "../ptx/matrix.h"
#include "../ptx/memory.h"
#include "../ptx/mma.h"
#include "../ptx/opaque.h"
#include "../tile/number.h"
#include "config.h"

namespace attune {

constexpr int kChunk = 16;  // bytes: what one lane moves at once, and one row of an ldmatrix matrix

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

// Rows of Chunks 16-byte chunks, one after another, without padding. The eight rows that an
// ldmatrix reads at once would fall onto the same banks, so the chunks of a row are permuted by
// exclusive-or with the row number: among as many neighbours as the rows' own offset leaves in
// conflict.
template <int Chunks>
struct Swizzle {
  static constexpr int kSpan = gcd(Chunks, 8);
  __device__ static int mask(int row) { return row / (8 / kSpan) & (kSpan - 1); }
  // In bytes. Rows that differ by a multiple of 8 have the same mask.
  __device__ static uint32_t offset(int row, int chunk) {
    return uint32_t(row * Chunks + (chunk ^ mask(row))) * kChunk;
  }
  // The address of `chunk` + 2 * step, from that of `chunk` (0 or 1) in the same row: where the
  // rows are powers of two long and so aligned, one exclusive-or, instead of an address kept for
  // every step.
  __device__ static uint32_t step(uint32_t first, int row, int chunk, int steps) {
    if constexpr (Chunks % 8 == 0 && (Chunks & (Chunks - 1)) == 0)
      return first ^ uint32_t(steps * 2 * kChunk);
    else
      return first + uint32_t(((chunk + 2 * steps) ^ mask(row)) - (chunk ^ mask(row))) * kChunk;
  }
};

// Copies rows [0, valid) of a matrix in global memory into Rows x Padded 16-bit numbers of shared
// memory; rows beyond and the padding become zeros. Row r begins at row_pointer(r). With Vector
// asynchronous and 16 bytes at once, else element by element.
template <int Rows, int Dim, int Padded, int Threads, bool Vector, class RowPointer>
__device__ inline void load_rows(uint32_t smem, int thread, int valid,
                                 const RowPointer& row_pointer) {
  constexpr int kChunks = Padded / 8;
#pragma unroll
  for (int n = 0; n < (Rows * kChunks + Threads - 1) / Threads; ++n) {
    const int at = n * Threads + thread;
    if (Rows * kChunks % Threads != 0 && at >= Rows * kChunks) break;
    const int row = at / kChunks, chunk = at % kChunks;
    const uint32_t to = smem + Swizzle<kChunks>::offset(row, chunk);
    const bool inside = row < valid;
    const uint16_t* from = row_pointer(inside ? row : 0) + chunk * 8;
    if constexpr (Vector) {
      const bool data = inside && (Dim == Padded || chunk * 8 < Dim);
      ptx::cp_async_cg(to, data ? from : row_pointer(0), data ? kChunk : 0);
    } else {
      uint32_t word[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int d = chunk * 8 + 2 * e;
        const uint32_t low = inside && d < Dim ? from[2 * e] : 0;
        const uint32_t high = inside && d + 1 < Dim ? from[2 * e + 1] : 0;
        word[e] = low | high << 16;
      }
      ptx::st_shared_v4(to, make_uint4(word[0], word[1], word[2], word[3]));
    }
  }
}

// The same for rows at a constant stride, as K and V have them. Where each pass of the threads
// covers a multiple of 8 whole rows, all that differs between passes is added to the base, for all
// threads alike; inside a tile 32 bits hold every offset (the host sees to it when it chooses
// Vector).
template <int Rows, int Dim, int Padded, int Threads, bool Vector>
__device__ inline void load_rows(uint32_t smem, int thread, int valid, const uint16_t* rows,
                                 int64_t stride) {
  constexpr int kChunks = Padded / 8, kPass = Threads / kChunks > 0 ? Threads / kChunks : 1;
  constexpr bool kPower = kChunks % 8 == 0 && (kChunks & (kChunks - 1)) == 0;  // Swizzle::step
  if constexpr (Vector && Dim == Padded && Threads % kChunks == 0 && Rows % kPass == 0 &&
                (kPass % 8 == 0 || (kPower && 8 % kPass == 0))) {
    const int row = thread / kChunks, chunk = thread % kChunks;
    const uint32_t to = smem + Swizzle<kChunks>::offset(row, chunk);
    const int from = (row * int(stride) + chunk * 8) * 2;  // signed: rows may run backwards
    const char* base = reinterpret_cast<const char*>(rows);
    if (valid >= Rows) {
#pragma unroll
      for (int n = 0; n < Rows / kPass; ++n)
        ptx::cp_async_cg((to ^ n * kPass % 8 * kChunk) + n * kPass * Padded * 2,
                         base + n * kPass * 2 * stride + from, kChunk);
    } else {
#pragma unroll
      for (int n = 0; n < Rows / kPass; ++n) {
        const bool inside = row + n * kPass < valid;
        ptx::cp_async_cg((to ^ n * kPass % 8 * kChunk) + n * kPass * Padded * 2,
                         inside ? base + n * kPass * 2 * stride + from : base, inside ? kChunk : 0);
      }
    }
  } else {
    load_rows<Rows, Dim, Padded, Threads, Vector>(smem, thread, valid,
                                                  [&](int r) { return rows + r * stride; });
  }
}

// A register of two numbers with Inf and NaN replaced by 0: adding one to the lowest exponent bit
// carries into the sign exactly then.
template <DType T>
__device__ inline uint32_t without_nonfinite(uint32_t x) {
  constexpr uint32_t kOne = T == DType::f16 ? 0x0400u : 0x0080u;
  if ((((x & 0x7fffu) + kOne) & 0x8000u) != 0) x &= 0xffff0000u;
  if (((((x >> 16) & 0x7fffu) + kOne) & 0x8000u) != 0) x &= 0x0000ffffu;
  return x;
}

template <DType T>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (T == DType::bf16)
    ptx::mma_m16n8k16_bf16(c, a, b0, b1);
  else
    ptx::mma_m16n8k16_f16(c, a, b0, b1);
}

}  // namespace attune
