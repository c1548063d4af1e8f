// Vector pieces of the fused kernel, compiled once for each instruction set (see fused.cpp): loads
// that widen to float, exp2, tanh.
#if defined(ATTUNE_SRC_CPU_VECTOR_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_VECTOR_INL_HPP_
#undef ATTUNE_SRC_CPU_VECTOR_INL_HPP_
#else
#define ATTUNE_SRC_CPU_VECTOR_INL_HPP_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "src/cpu/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;
constexpr int kLanes = HWY_MAX_BYTES / sizeof(float);

// 16 vector registers on SSE4 and AVX2, 32 on AVX-512 and NEON.
constexpr int kRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64 ? 32 : 16;

// Loads Lanes(d) elements of any storage type as float. The pointer need not be aligned.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const F16* p) {
#if HWY_TARGET == HWY_SSE4
  // Highway's own widening for SSE4 turns Inf and NaN into numbers. Shifted into place, an fp16 is
  // a float too small by 2^112.
  const hn::RebindToUnsigned<D> du;
  const auto bits =
      hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(p)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112f)));
  const auto special = hn::Gt(magnitude, hn::Set(du, 0x0f7fffffu));
  const auto value = hn::IfThenElse(special, hn::Or(magnitude, hn::Set(du, 0x7f800000u)), scaled);
  return hn::BitCast(d, hn::Or(value, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)))));
#else
  return hn::PromoteTo(
      d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const BF16* p) {
  return hn::PromoteTo(
      d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), reinterpret_cast<const hwy::bfloat16_t*>(p)));
}

// The first count (less than a vector) elements, and zeros: never reads past the end of a row.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadFloatsN(D d, const T* p, int count) {
  HWY_ALIGN T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
  return LoadFloats(d, lanes);
}

// Asks for the cache lines of count elements.
template <class T>
HWY_INLINE void PrefetchRow(const T* row, int64_t count) {
  for (int64_t e = 0; e < count; e += 64 / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(row + e, 0, 2);
}

// max(x, low), but NaN for NaN. x86's maximum gives its second operand when one is a NaN; NEON's
// gives the number.
template <class D>
HWY_INLINE hn::Vec<D> AtLeast(D d, hn::Vec<D> x, float low) {
#if HWY_ARCH_X86
  return hn::Max(hn::Set(d, low), x);
#else
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, low)), hn::Set(d, low), x);
#endif
}

// 2^(x * scale) for x * scale <= 126, exactly 0 below -126.5, and NaN for NaN; low is -127 / scale.
// kDegree sets the relative error: 4 2.9e-6, 5 1.7e-7, 6 8e-8. The coefficients are a minimax fit
// of 1 + f*q(f) on [-1/2, 1/2], so that 2^0 is exactly 1. The product is never rounded by itself,
// so a large x loses nothing.
template <int kDegree, class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x, hn::Vec<D> scale, float low) {
  const hn::RebindToUnsigned<D> du;
  // Adding 1.5 * 2^23 leaves the rounded exponent in the low mantissa bits; the 127 on top makes
  // them the biased exponent of a float.
  const auto magic = hn::Set(d, 12582912.0f + 127.0f);
  x = AtLeast(d, x, low);
  const auto shifted = hn::MulAdd(x, scale, magic);
  const auto f = hn::MulSub(x, scale, hn::Sub(shifted, magic));
  auto q = hn::Set(d, 0.0f);
  if constexpr (kDegree == 4) {
    q = hn::Set(d, 0x1.3a02ccp-7f);
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.c9fc48p-5f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.ec0378p-3f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.62e12cp-1f));
  } else if constexpr (kDegree == 5) {
    q = hn::Set(d, 0x1.5bba12p-10f);
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.3cea88p-7f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.c6b752p-5f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.ebf9bcp-3f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.62e42ap-1f));
  } else {
    static_assert(kDegree == 6);
    q = hn::Set(d, 0x1.41fbbcp-13f);
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.5f3e54p-10f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.3b2d4cp-7f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.c6aee8p-5f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.ebfbdcp-3f));
    q = hn::MulAdd(q, f, hn::Set(d, 0x1.62e430p-1f));
  }
  q = hn::MulAdd(q, f, hn::Set(d, 1.0f));
  return hn::Mul(q, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
}

// tanh to about 1e-7, relative: a polynomial near 0, where 1 - 2/(e^2x + 1) would cancel.
template <class D>
HWY_INLINE hn::Vec<D> Tanh(D d, hn::Vec<D> x) {
  const auto a = hn::Abs(x);
  const auto z = hn::Mul(x, x);
  auto small = hn::Set(d, -0.005717039f);
  small = hn::MulAdd(small, z, hn::Set(d, 0.020650582f));
  small = hn::MulAdd(small, z, hn::Set(d, -0.053743497f));
  small = hn::MulAdd(small, z, hn::Set(d, 0.13331491f));
  small = hn::MulAdd(small, z, hn::Set(d, -0.33333284f));
  small = hn::MulAdd(hn::Mul(small, z), a, a);
  // 2 log2(e); beyond 14 the result is 1 to the last bit.
  const auto e = Exp2<6>(d, hn::Min(hn::Set(d, 14.0f), a), hn::Set(d, 2.885390082f), -1.0f);
  const auto large =
      hn::Sub(hn::Set(d, 1.0f), hn::Div(hn::Set(d, 2.0f), hn::Add(e, hn::Set(d, 1.0f))));
  const auto value = hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625f)), small, large);
  return hn::IfThenElse(hn::Eq(x, x), hn::CopySign(value, x), x);  // NaN stays NaN
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
