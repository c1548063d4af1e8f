// The two matrix products of a block as one register-tiled micro-kernel, and the packing that feeds
// it.
#if defined(ATTUNE_SRC_CPU_GEMM_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_GEMM_INL_HPP_
#undef ATTUNE_SRC_CPU_GEMM_INL_HPP_
#else
#define ATTUNE_SRC_CPU_GEMM_INL_HPP_
#endif

#include "src/cpu/vector_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

// C[kRows][kVecs vectors] = (kAdd ? C : 0) + A[kRows][depth] * B[depth][kVecs vectors]. kLate: the
// products are summed from 0 and C is added in the end; a sum of sums is less wrong than a long
// sum. A is read one float at a time and broadcast: element (r, k) at a[r * kRowStride + k *
// kDepthStride]. Constant strides, so that every address is one pointer plus a displacement.
template <int kRows, int kVecs, int kRowStride, int kDepthStride, bool kAdd, bool kLate = false>
HWY_INLINE void MicroKernel(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t ldb,
                            int64_t depth, float* HWY_RESTRICT c, int64_t ldc) {
  const Floats d;
  FloatVec acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v)
      acc[r][v] = kAdd && !kLate ? hn::LoadU(d, c + r * ldc + v * kLanes) : hn::Zero(d);
  }
  for (int64_t k = 0; k < depth; ++k) {
    FloatVec row[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) row[v] = hn::LoadU(d, b + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, a[r * kRowStride]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(x, row[v], acc[r][v]);
    }
    a += kDepthStride;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      float* to = c + r * ldc + v * kLanes;
      if constexpr (kAdd && kLate) acc[r][v] = hn::Add(acc[r][v], hn::LoadU(d, to));
      hn::StoreU(acc[r][v], d, to);
    }
  }
}

// The same for two groups of rows and one vector of columns: the chains of one group alone are too
// few to hide how long an addition takes.
template <int kRows, int kDepthStride>
HWY_INLINE void NarrowPair(const float* HWY_RESTRICT a0, const float* HWY_RESTRICT a1,
                           const float* HWY_RESTRICT b, int64_t depth, float* HWY_RESTRICT c0,
                           float* HWY_RESTRICT c1, int64_t ldc) {
  const Floats d;
  FloatVec acc0[kRows], acc1[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc0[r] = acc1[r] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    const auto row = hn::LoadU(d, b + k * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc0[r] = hn::MulAdd(hn::Set(d, a0[r]), row, acc0[r]);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc1[r] = hn::MulAdd(hn::Set(d, a1[r]), row, acc1[r]);
    a0 += kDepthStride;
    a1 += kDepthStride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) hn::StoreU(acc0[r], d, c0 + r * ldc);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) hn::StoreU(acc1[r], d, c1 + r * ldc);
}

// Four rows of four floats, transposed: column i goes to to + i * step.
template <class T>
HWY_INLINE void TransposeSquare(const T* r0, const T* r1, const T* r2, const T* r3, int64_t step,
                                float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> dw;  // pairs of floats
  const auto x0 = LoadFloats(d, r0), x1 = LoadFloats(d, r1);
  const auto x2 = LoadFloats(d, r2), x3 = LoadFloats(d, r3);
  const auto lo01 = hn::BitCast(dw, hn::InterleaveLower(d, x0, x1));
  const auto hi01 = hn::BitCast(dw, hn::InterleaveUpper(d, x0, x1));
  const auto lo23 = hn::BitCast(dw, hn::InterleaveLower(d, x2, x3));
  const auto hi23 = hn::BitCast(dw, hn::InterleaveUpper(d, x2, x3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, lo01, lo23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, lo01, lo23)), d, to + step);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, hi01, hi23)), d, to + 2 * step);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, hi01, hi23)), d, to + 3 * step);
}

// Transposes a group of kRows query rows: to[d][row].
template <int kRows, class T>
HWY_INLINE void PackRows(const T* const* from, int dim, float* HWY_RESTRICT to) {
  constexpr int kWhole = kRows / 4 * 4;
  int e = 0;
  for (; e + 4 <= dim; e += 4) {
#pragma GCC unroll 4
    for (int r = 0; r < kWhole; r += 4)
      TransposeSquare(from[r] + e, from[r + 1] + e, from[r + 2] + e, from[r + 3] + e, kRows,
                      to + int64_t{e} * kRows + r);
#pragma GCC unroll 4
    for (int x = e; x < e + 4; ++x) {
#pragma GCC unroll 4
      for (int r = kWhole; r < kRows; ++r) to[int64_t{x} * kRows + r] = to_float(from[r][x]);
    }
  }
  for (; e < dim; ++e) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) to[int64_t{e} * kRows + r] = to_float(from[r][e]);
  }
}

// Transposes keys x dim rows of K into panels of `panel` keys: to[p][d][key of the panel]. The last
// panel is as many whole vectors wide as it needs, with zeros past the last key. Works on 4x4
// squares of 128-bit vectors, which every instruction set has. Keys run innermost: stores then fill
// whole cache lines, and a panel's rows miss the cache together.
template <class T>
void PackKeys(const T* HWY_RESTRICT from, int64_t stride, int keys, int dim, int panel,
              float* HWY_RESTRICT to) {
  for (int first = 0; first < keys; first += panel) {
    const T* rows = from + first * stride;
    const int present = HWY_MIN(panel, keys - first), whole = present / 4 * 4;
    const int width = (present + kLanes - 1) / kLanes * kLanes;
    if (whole < width) {  // the last vector of each dimension, of which keys come below
      const Floats zeros;
      for (int x = 0; x < dim; ++x)
        hn::StoreU(hn::Zero(zeros), zeros, to + int64_t{x} * width + width - kLanes);
    }
    int e = 0;
    for (; e + 4 <= dim; e += 4) {
      float* square = to + int64_t{e} * width;
      for (int key = 0; key < whole; key += 4) {
        const T* row = rows + key * stride + e;
        TransposeSquare(row, row + stride, row + 2 * stride, row + 3 * stride, width, square + key);
      }
    }
    // The dimensions and keys that squares do not cover.
    for (int x = 0; x < dim; ++x) {
      for (int key = x < e ? whole : 0; key < present; ++key)
        to[int64_t{x} * width + key] = to_float(rows[key * stride + x]);
    }
    to += int64_t{panel} * dim;
  }
}

// Rows of V as panels of some columns: element (key, column c of panel n) at data[n * panel + key *
// row + c].
struct Values {
  const float* data;
  int64_t row, panel;
};

// Copies V as float into panels of `panel` columns: to[p][key][column of the panel], zeros past the
// last column of the last whole vector.
template <class T>
void PackValues(const T* HWY_RESTRICT from, int64_t stride, int keys, int dim, int panel,
                float* HWY_RESTRICT to) {
  const Floats d;
  for (int first = 0; first < dim; first += panel, to += int64_t{keys} * panel) {
    const int columns = HWY_MIN(panel, dim - first);
    const T* row = from + first;
    float* packed = to;
    for (int key = 0; key < keys; ++key, row += stride, packed += panel) {
      int e = 0;
      for (; e + kLanes <= columns; e += kLanes) hn::StoreU(LoadFloats(d, row + e), d, packed + e);
      if (e < columns) hn::StoreU(LoadFloatsN(d, row + e, columns - e), d, packed + e);
    }
  }
}

// True when a value is Inf or NaN: those alone give NaN when multiplied with 0.
template <class T>
bool AnyNonFinite(const T* HWY_RESTRICT v, int64_t stride, int keys, int dim) {
  const Floats d;
  const auto zero = hn::Zero(d);
  auto sum = zero;
  for (int key = 0; key < keys; ++key, v += stride) {
    int e = 0;
    for (; e + kLanes <= dim; e += kLanes) sum = hn::MulAdd(LoadFloats(d, v + e), zero, sum);
    if (e < dim) sum = hn::MulAdd(LoadFloatsN(d, v + e, dim - e), zero, sum);
  }
  return !hn::AllTrue(d, hn::Eq(sum, zero));
}

// The sum over the 128-bit blocks of a vector, lane by lane.
template <class D>
HWY_INLINE auto SumOfBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// scores[i] = q . k[i] for four keys, K read in place: for tasks of a few rows, where packing would
// cost more than the product. Four at once, because adding up the lanes of one vector takes longer
// than its products. q is padded with zeros to a multiple of the vector.
template <class T>
HWY_INLINE void Dot4(const float* HWY_RESTRICT q, const T* const* k, int dim,
                     float* HWY_RESTRICT scores) {
  const Floats d;
  const hn::RepartitionToWide<Floats> pairs;
  FloatVec sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int e = 0;
  for (; e + kLanes <= dim; e += kLanes) {
    const auto x = hn::LoadU(d, q + e);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] = hn::MulAdd(x, LoadFloats(d, k[i] + e), sum[i]);
  }
  if (e < dim) {
    const auto x = hn::LoadU(d, q + e);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i] = hn::MulAdd(x, LoadFloatsN(d, k[i] + e, dim - e), sum[i]);
  }
  // Within each block: halves of two keys side by side, then all four keys.
  const auto two =
      hn::Add(hn::InterleaveLower(d, sum[0], sum[1]), hn::InterleaveUpper(d, sum[0], sum[1]));
  const auto other =
      hn::Add(hn::InterleaveLower(d, sum[2], sum[3]), hn::InterleaveUpper(d, sum[2], sum[3]));
  const auto low = hn::InterleaveLower(pairs, hn::BitCast(pairs, two), hn::BitCast(pairs, other));
  const auto high = hn::InterleaveUpper(pairs, hn::BitCast(pairs, two), hn::BitCast(pairs, other));
  const auto four = hn::Add(hn::BitCast(d, low), hn::BitCast(d, high));
  hn::StoreU(SumOfBlocks(d, four), hn::CappedTag<float, 4>(), scores);
}

// out += weights * V for one row and kVecs vectors of columns, V read in place.
template <int kVecs, class T>
HWY_INLINE void WeighColumns(const float* HWY_RESTRICT weights, const T* HWY_RESTRICT v,
                             int64_t stride, int keys, float* HWY_RESTRICT out) {
  const Floats d;
  FloatVec acc[kVecs];
#pragma GCC unroll 8
  for (int x = 0; x < kVecs; ++x) acc[x] = hn::LoadU(d, out + x * kLanes);
  for (int key = 0; key < keys; ++key, v += stride) {
    const auto weight = hn::Set(d, weights[key]);
#pragma GCC unroll 8
    for (int x = 0; x < kVecs; ++x)
      acc[x] = hn::MulAdd(weight, LoadFloats(d, v + x * kLanes), acc[x]);
  }
#pragma GCC unroll 8
  for (int x = 0; x < kVecs; ++x) hn::StoreU(acc[x], d, out + x * kLanes);
}

// The same for all columns; out is padded to a multiple of the vector.
template <class T>
void WeighValues(const float* HWY_RESTRICT weights, const T* HWY_RESTRICT v, int64_t stride,
                 int keys, int dim, float* HWY_RESTRICT out) {
  const Floats d;
  int e = 0;
  for (; e + 4 * kLanes <= dim; e += 4 * kLanes)
    WeighColumns<4>(weights, v + e, stride, keys, out + e);
  for (; e + kLanes <= dim; e += kLanes) WeighColumns<1>(weights, v + e, stride, keys, out + e);
  if (e == dim) return;
  auto acc = hn::LoadU(d, out + e);
  for (int key = 0; key < keys; ++key) {
    acc = hn::MulAdd(hn::Set(d, weights[key]), LoadFloatsN(d, v + key * stride + e, dim - e), acc);
  }
  hn::StoreU(acc, d, out + e);
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
