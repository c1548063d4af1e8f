// Rows of Q, K and V on their way to shared memory, and rows of O on their way back: fp32 on the
// inside, any dtype on the outside, four columns at a time.
#pragma once

#include "../tile/number.h"
#include "config.h"

namespace attune {

__device__ inline float4 float4_at(const float* x) { return *reinterpret_cast<const float4*>(x); }

__device__ inline void copy4(const float* from, float* to) {
  const float4 x = float4_at(from);
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

__device__ inline float dot(const float4& x, const float4& y, float sum) {
  return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

__device__ inline void add_scaled(float w, const float4& y, float (&acc)[4]) {
  acc[0] = fmaf(w, y.x, acc[0]);
  acc[1] = fmaf(w, y.y, acc[1]);
  acc[2] = fmaf(w, y.z, acc[2]);
  acc[3] = fmaf(w, y.w, acc[3]);
}

// Four elements of 16 bits.
template <DType T>
__device__ inline float4 unpack(uint32_t low, uint32_t high) {
  return {to_float<T>(uint16_t(low)), to_float<T>(uint16_t(low >> 16)), to_float<T>(uint16_t(high)),
          to_float<T>(uint16_t(high >> 16))};
}

// 0 where all four are finite, else NaN.
__device__ inline float zero_of(const float4& x) {
  return fmaf(x.x, 0.f, fmaf(x.y, 0.f, fmaf(x.z, 0.f, x.w * 0.f)));
}

// One load of 128 bits to shared memory.
template <DType T>
__device__ inline float spread(float* to, const uint4& x) {
  float4* at = reinterpret_cast<float4*>(to);
  if constexpr (T == DType::f32) {
    at[0] = {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
             __uint_as_float(x.w)};
    return zero_of(at[0]);
  } else {
    const float4 first = unpack<T>(x.x, x.y), second = unpack<T>(x.z, x.w);
    at[0] = first;
    at[1] = second;
    return zero_of(first) + zero_of(second);
  }
}

// from [valid][dim] to [rows][pitch], by all threads of the block; rows from `valid` on become 0,
// and so do columns up to a multiple of 4. Returns whether all that this thread saw is finite.
template <DType T, int rows, int dim, int pitch, int threads, bool vector>
__device__ inline bool load_rows(float* to, const Storage<T>* from, int64_t stride, int valid) {
  constexpr int kStep = vector ? 16 / int(sizeof(Storage<T>)) : 1;  // elements a load
  constexpr int kRow = vector ? dim / kStep : round_up(dim, 4);     // loads a row
  constexpr int kLoads = (rows * kRow + threads - 1) / threads;     // loads a thread
  // In flight at once; two trips at least, since of a single one the compiler would keep every
  // address in registers from tile to tile.
  constexpr int kBatch = kLoads >= 8 ? 4 : kLoads >= 2 ? kLoads / 2 : 1;
  float zero = 0;
#pragma unroll 1
  for (int first = 0; first < kLoads; first += kBatch) {
    uint4 data[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int at = threadIdx.x + (first + n) * threads, row = at / kRow,
                column = at % kRow * kStep;
      data[n] = {};
      if (row >= valid || column >= dim) continue;
      const Storage<T>* source = from + row * stride + column;
      if constexpr (vector)
        data[n] = *reinterpret_cast<const uint4*>(source);
      else
        data[n].x = __float_as_uint(to_float<T>(*source));
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int at = threadIdx.x + (first + n) * threads, row = at / kRow,
                column = at % kRow * kStep;
      if (row >= rows) continue;
      float* target = to + row * pitch + column;
      if constexpr (vector) {
        zero += spread<T>(target, data[n]);
      } else {
        *target = __uint_as_float(data[n].x);
        zero = fmaf(*target, 0.f, zero);
      }
    }
  }
  return zero == 0;
}

// Four columns of a row of O, those below dim.
template <DType T, bool vector>
__device__ inline void store4(Storage<T>* row, int column, int dim, const float (&x)[4]) {
  if constexpr (!vector) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (column + c < dim) row[column + c] = from_float<T>(x[c]);
  } else if (column < dim) {
    if constexpr (T == DType::f32)
      *reinterpret_cast<float4*>(row + column) = float4{x[0], x[1], x[2], x[3]};
    else
      *reinterpret_cast<uint2*>(row + column) = uint2{pack<T>(x[0], x[1]), pack<T>(x[2], x[3])};
  }
}

}  // namespace attune
