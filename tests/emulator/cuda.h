// The part of CUDA C++ that the kernels use, for a compiler of C++: keywords, vector types and
// built-in functions. It stands before every kernel's text.
#pragma once

#include <math.h>
#include <string.h>

#include "emulator/machine.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define threadIdx (attune::emulator::machine().thread)
#define blockIdx (attune::emulator::machine().block)
#define blockDim (attune::emulator::machine().threads)
#define gridDim (attune::emulator::machine().blocks)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

// ---- arithmetic ----

#define ATTUNE_MIN_MAX(type)                                \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
ATTUNE_MIN_MAX(int)
ATTUNE_MIN_MAX(unsigned)
ATTUNE_MIN_MAX(long)
ATTUNE_MIN_MAX(unsigned long)
ATTUNE_MIN_MAX(long long)
#undef ATTUNE_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline uint32_t __float_as_uint(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float __uint_as_float(uint32_t x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }

// The float next to x towards 0, where x is beyond the exact value.
inline float towards_zero(float x, double exact) {
  return fabs(double(x)) > fabs(exact) ? nextafterf(x, 0) : x;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmul_rz(float a, float b) { return towards_zero(a * b, double(a) * b); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rz(float x) { return towards_zero(1 / x, 1.0 / x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

// ---- memory ----

// Threads do not run at once: they hand over only where they wait.
template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = before + value;
  return before;
}
template <class T>
T atomicMax(T* at, T value) {
  const T before = *at;
  if (before < value) *at = value;
  return before;
}
inline void __threadfence() {}

inline uint32_t __cvta_generic_to_shared(const void* p) {
  return uint32_t(static_cast<const uint8_t*>(p) - attune::emulator::machine().shared);
}

// ---- threads that wait for each other ----

inline void __syncthreads() { attune::emulator::machine().barrier(0, 0, true); }
inline bool __syncthreads_or(int mine) { return attune::emulator::machine().barrier_or(mine != 0); }
inline void __syncwarp(unsigned = ~0u) {
  attune::emulator::machine().warp(
      nullptr, [](const void* const*, const void*) {}, nullptr);
}

namespace attune::emulator {

template <class T>
struct Lane {
  T value;
  T* got;
  int source;
};

// Each lane gets the value of the lane that it names.
template <class T>
T shuffle(T value, int source) {
  T got{};
  const Lane<T> mine{value, &got, source & 31};
  machine().warp(
      &mine,
      [](const void* const* lanes, const void*) {
        const auto lane = [&](int n) { return static_cast<const Lane<T>*>(lanes[n]); };
        for (int n = 0; n < 32; ++n) *lane(n)->got = lane(lane(n)->source)->value;
      },
      nullptr);
  return got;
}

// The bits of all lanes.
inline unsigned ballot(bool mine) {
  unsigned got = 0;
  const Lane<unsigned> me{mine, &got, 0};
  machine().warp(
      &me,
      [](const void* const* lanes, const void*) {
        const auto lane = [&](int n) { return static_cast<const Lane<unsigned>*>(lanes[n]); };
        unsigned bits = 0;
        for (int n = 0; n < 32; ++n) bits |= lane(n)->value << n;
        for (int n = 0; n < 32; ++n) *lane(n)->got = bits;
      },
      nullptr);
  return got;
}

inline int lane_number() { return int(machine().thread.x % 32); }

}  // namespace attune::emulator

// Lanes of a whole warp, as all kernels here use them.
template <class T>
T __shfl_sync(unsigned, T value, int source) {
  return attune::emulator::shuffle(value, source);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return attune::emulator::shuffle(value, attune::emulator::lane_number() ^ mask);
}
inline unsigned __ballot_sync(unsigned, bool mine) { return attune::emulator::ballot(mine); }
inline bool __any_sync(unsigned, bool mine) { return attune::emulator::ballot(mine) != 0; }
inline bool __all_sync(unsigned, bool mine) { return attune::emulator::ballot(mine) == ~0u; }

namespace attune::emulator {

// Calls a kernel with arguments as a launch has them: an address of each.
template <class A>
void call(void (*kernel)(A), void** args) {
  kernel(*static_cast<A*>(args[0]));
}
template <class A, class B>
void call(void (*kernel)(A, B), void** args) {
  kernel(*static_cast<A*>(args[0]), *static_cast<B*>(args[1]));
}
template <class A, class B, class C>
void call(void (*kernel)(A, B, C), void** args) {
  kernel(*static_cast<A*>(args[0]), *static_cast<B*>(args[1]), *static_cast<C*>(args[2]));
}
template <class A, class B, class C, class D>
void call(void (*kernel)(A, B, C, D), void** args) {
  kernel(*static_cast<A*>(args[0]), *static_cast<B*>(args[1]), *static_cast<C*>(args[2]),
         *static_cast<D*>(args[3]));
}
template <class A, class B, class C, class D, class E>
void call(void (*kernel)(A, B, C, D, E), void** args) {
  kernel(*static_cast<A*>(args[0]), *static_cast<B*>(args[1]), *static_cast<C*>(args[2]),
         *static_cast<D*>(args[3]), *static_cast<E*>(args[4]));
}

}  // namespace attune::emulator
