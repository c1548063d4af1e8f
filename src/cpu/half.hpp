// fp16 and bf16 as 16-bit patterns, converted to and from float one at a time, rounding to nearest
// even.
#pragma once

#include <bit>
#include <cstdint>

namespace attune::cpu {

inline float bf16_to_float(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t float_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);  // NaN stays NaN, quiet
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));  // Inf, NaN
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  // Subnormal: magnitude * 2^-24 is exact in float.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(magnitude) * 0x1p-24f));
}

inline uint16_t float_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // at or above 65520: infinity
  if (a < 0x38800000u) {  // below 2^-14: let the float adder round at 2^-24
    const float r = std::bit_cast<float>(a) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(r) - 0x3f000000u));
  }
  return uint16_t(sign | ((a + 0xc8000fffu + ((a >> 13) & 1u)) >> 13));
}

// The same as storage types, for code that is generic over them.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
inline float to_float(float x) { return x; }
inline float to_float(F16 x) { return f16_to_float(x.bits); }
inline float to_float(BF16 x) { return bf16_to_float(x.bits); }
inline void store(float x, float* to) { *to = x; }
inline void store(float x, F16* to) { to->bits = float_to_f16(x); }
inline void store(float x, BF16* to) { to->bits = float_to_bf16(x); }

}  // namespace attune::cpu
