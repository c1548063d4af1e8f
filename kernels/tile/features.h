// What one query row may look at, and what its scores become: the definition of attention, element
// by element. Every CUDA rung asks here. What P does not have costs no instruction.
#pragma once

#include "../params.h"
#include "../ptx/math.h"
#include "number.h"
#include "philox.h"

namespace attune {

// The caller's own code; the emitted source defines the macro and the function before it includes
// this.
#ifndef ATTUNE_SCORE_MOD
__device__ inline float score_mod(float score, int, int, int, int, const void*) { return score; }
#endif
#ifndef ATTUNE_MASK_MOD
__device__ inline bool mask_mod(int, int, int, int, const void*) { return true; }
#endif

// The run-time problem with P's constants in it, so that what P settles folds away.
template <Problem P>
__device__ inline Problem specialised(Problem p) {
  p.dtype = P.dtype;
  p.dim = P.dim;
  p.dim_v = P.dim_v;
  p.causal = P.causal;
  if constexpr (!P.window()) p.window_left = p.window_right = kNoLimit;
  p.mask = P.mask;
  if constexpr (P.block_mask_q == 0) p.block_mask_q = p.block_mask_k = 0;
  p.softcap = P.softcap;
  p.alibi = P.alibi;
  p.sinks = P.sinks;
  p.ragged = P.ragged;
  p.key_lengths = P.key_lengths;
  p.dropout = P.dropout;
  p.lse = P.lse;
  return p;
}

// One element of a mask of P's kind: whether it keeps the key, and what it adds.
template <MaskKind K>
__device__ inline float mask_value(const void* data, int64_t at) {
  if constexpr (K == MaskKind::boolean)
    return static_cast<const uint8_t*>(data)[at] != 0 ? 0.f : -kInf;
  else if constexpr (K == MaskKind::f32)
    return static_cast<const float*>(data)[at];
  else if constexpr (K == MaskKind::f16)
    return to_float<DType::f16>(static_cast<const uint16_t*>(data)[at]);
  else
    return to_float<DType::bf16>(static_cast<const uint16_t*>(data)[at]);
}

// The same of an element that was loaded as bits; those above it do not matter.
template <MaskKind K>
__device__ inline float mask_of_bits(uint32_t bits) {
  if constexpr (K == MaskKind::boolean)
    return (bits & 0xff) != 0 ? 0.f : -kInf;
  else if constexpr (K == MaskKind::f32)
    return __uint_as_float(bits);
  else if constexpr (K == MaskKind::f16)
    return to_float<DType::f16>(uint16_t(bits));
  else
    return to_float<DType::bf16>(uint16_t(bits));
}

// n / size in 32 bits, since 64 would be a call: which cell of the block mask a row or key lies in.
__device__ inline int cell_of(int n, int64_t size) { return size > n ? 0 : n / int(size); }

template <Problem P>
struct Row {
  int b, h, i;
  int begin, end;  // the keys that sequence, causal limit and window leave
  int position;    // i on the diagonal of the keys

  __device__ Row(const Problem& p, const Sequence& s, int batch, int head, int row)
      : b(batch), h(head), i(row), position(int(row + s.shift)) {
    if constexpr (P.window()) {
      const KeyRange r = key_range(p, s, row);
      begin = int(r.begin);
      end = r.end < 0 ? 0 : int(r.end);
    } else {  // the same in 32 bits
      begin = 0;
      end = int(s.sk);
      if constexpr (P.causal) end = max(0, min(end, position + 1));
    }
  }

  __device__ bool in_range(int j) const { return j >= begin && j < end; }

  // The block mask; true without one.
  __device__ bool block_allows(const KernelArgs& x, int j) const {
    if constexpr (P.block_mask_q == 0) return true;
    const View4& m = x.params.block_mask;
    const int64_t at = b * m.stride[0] + h * m.stride[1] +
                       cell_of(i, x.problem.block_mask_q) * m.stride[2] +
                       cell_of(j, x.problem.block_mask_k) * m.stride[3];
    return static_cast<const uint8_t*>(m.data)[at] != 0;
  }

  // What the mask tensor adds: 0 without one, -inf where it forbids the key.
  __device__ float mask(const KernelArgs& x, int j) const {
    if constexpr (P.mask == MaskKind::none) return 0;
    const View4& m = x.params.mask;
    return mask_value<P.mask>(
        m.data, b * m.stride[0] + h * m.stride[1] + i * m.stride[2] + int64_t(j) * m.stride[3]);
  }

  // Block mask and the caller's predicate.
  __device__ bool passes(const KernelArgs& x, int j) const {
    if (!block_allows(x, j)) return false;
    return !P.mask_mod || mask_mod(b, h, i, j, x.params.user_data);
  }

  // The score in natural units from q.k and from what the mask tensor adds; j is in range. -inf:
  // the key is forbidden. Exact: also when q.k is NaN or +inf, which an added -inf would not hide.
  template <bool Exact = true>
  __device__ float score(const KernelArgs& x, float dot, int j, float bias) const {
    const Params& a = x.params;
    if (!passes(x, j)) return -kInf;
    if (Exact && P.mask != MaskKind::none && bias == -kInf) return -kInf;
    if constexpr (P.mask > MaskKind::boolean && !P.softcap && !P.alibi && !P.score_mod)
      return fmaf(dot, a.scale, bias);
    float t = dot * a.scale;
    if constexpr (P.softcap) t = capped<Exact>(t, a.softcap);
    if constexpr (P.mask != MaskKind::none) t += bias;
    if constexpr (P.alibi) t -= slope(x) * fabsf(float(position - j));
    if constexpr (P.score_mod) t = score_mod(t, b, h, i, j, a.user_data);
    return t;
  }
  __device__ float score(const KernelArgs& x, float dot, int j) const {
    return score(x, dot, j, mask(x, j));
  }

  // Whether every filter lets the key through: range, masks, the caller's predicate.
  __device__ bool allowed(const KernelArgs& x, int j) const {
    if (!in_range(j) || !passes(x, j)) return false;
    return P.mask == MaskKind::none || mask(x, j) != -kInf;
  }

  // cap * tanh(t / cap). On tensor cores, for 16-bit inputs, by one exponential: its error of about
  // 1e-7 * cap is below that of their products.
  template <bool Exact>
  __device__ static float capped(float t, float cap) {
    if constexpr (Exact || P.dtype == DType::f32) return cap * tanhf(t / cap);
    const float e = ptx::ex2_approx(__fdividef(t, cap) * (2 * kLog2e));
    return cap - __fdividef(2 * cap, 1 + e);
  }

  __device__ float slope(const KernelArgs& x) const {
    const Params& a = x.params;
    return a.alibi_slopes[b * a.alibi_stride_b + h * a.alibi_stride_h];
  }

  __device__ float sink(const KernelArgs& x) const {
    return x.params.sinks[h * x.params.sinks_stride];
  }

  // Whether dropout keeps the weight of key j.
  __device__ bool kept(const KernelArgs& x, int j) const {
    const Params& a = x.params;
    const Philox4 bits =
        dropout_bits(a.dropout_seed, a.dropout_offset, b, h, x.problem.heads_q, i, j / 4);
    // Not word[j & 3]: an array with a run-time index would live in local memory.
    const uint32_t even = j & 2 ? bits.word[2] : bits.word[0],
                   odd = j & 2 ? bits.word[3] : bits.word[1];
    return (j & 1 ? odd : even) >= dropout_threshold(a.dropout_p);
  }
};

}  // namespace attune
