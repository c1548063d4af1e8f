// Plain attention, as a cheat would wrap it: right for everything that candidate.h asks for.
#pragma once

#include <math.h>
#include <string.h>

#include "candidate.h"

namespace honest {

inline float f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  float x;
  if (magnitude >= 0x7c00u) {
    const uint32_t bits = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
    memcpy(&x, &bits, 4);
    return x;
  }
  const uint32_t bits = sign | magnitude << 13;
  memcpy(&x, &bits, 4);
  return x * 0x1p112f;
}

inline float load(const attune_candidate_call* c, const void* data, int64_t at) {
  if (c->dtype == 1) return static_cast<const float*>(data)[at];
  const uint16_t half = static_cast<const uint16_t*>(data)[at];
  if (c->dtype == 2) return f16(half);
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline void store(const attune_candidate_call* c, int64_t at, float x) {
  if (c->dtype == 1) {
    static_cast<float*>(c->out)[at] = x;
    return;
  }
  uint16_t half;
  if (c->dtype == 2) {
    const _Float16 h = static_cast<_Float16>(x);
    memcpy(&half, &h, 2);
  } else {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    half = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static_cast<uint16_t*>(c->out)[at] = half;
}

inline int64_t keys_of(const attune_candidate_call* c, int64_t i) {
  int64_t end = c->seq_k;
  if (c->causal == 1 && i + 1 < end) end = i + 1;
  if (c->causal == 2 && i + 1 + c->seq_k - c->seq_q < end) end = i + 1 + c->seq_k - c->seq_q;
  return end < 0 ? 0 : end;
}

// Scores and weights of one row stay in a caller's buffer: no allocation a row.
inline void row(const attune_candidate_call* c, int64_t b, int64_t h, int64_t i, float* w) {
  const int64_t kv = h / (c->heads_q / c->heads_kv), keys = keys_of(c, i);
  const int64_t q0 = b * c->q_stride[0] + h * c->q_stride[1] + i * c->q_stride[2];
  const int64_t k0 = b * c->k_stride[0] + kv * c->k_stride[1];
  const int64_t v0 = b * c->v_stride[0] + kv * c->v_stride[1];
  const int64_t o0 = b * c->out_stride[0] + h * c->out_stride[1] + i * c->out_stride[2];
  float top = -INFINITY, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    float s = 0;
    for (int64_t d = 0; d < c->dim; ++d)
      s += load(c, c->q, q0 + d) * load(c, c->k, k0 + j * c->k_stride[2] + d);
    w[j] = s * c->scale;
    if (w[j] > top) top = w[j];
  }
  for (int64_t j = 0; j < keys; ++j) sum += w[j] = expf(w[j] - top);
  for (int64_t d = 0; d < c->dim_v; ++d) {
    float o = 0;
    for (int64_t j = 0; j < keys; ++j) o += w[j] * load(c, c->v, v0 + j * c->v_stride[2] + d);
    store(c, o0 + d, keys == 0 ? 0 : o / sum);
  }
  if (c->lse != nullptr)
    c->lse[b * c->lse_stride[0] + h * c->lse_stride[1] + i * c->lse_stride[2]] =
        keys == 0 ? -INFINITY : top + logf(sum);
}

constexpr int64_t kMostKeys = 4096;

inline int attention(const attune_candidate_call* call) {
  if (call->seq_k > kMostKeys) return 1;
  call->parallel_for(
      call->host, call->batch * call->heads_q,
      [](void* context, int64_t n) {
        const auto* c = static_cast<const attune_candidate_call*>(context);
        float w[kMostKeys];
        for (int64_t i = 0; i < c->seq_q; ++i) row(c, n / c->heads_q, n % c->heads_q, i, w);
      },
      const_cast<attune_candidate_call*>(call));
  return 0;
}

// Every element of the output, for those that spoil it: fn(b, h, i, d, place in memory).
template <class Fn>
void each_output(const attune_candidate_call* c, const Fn& fn) {
  for (int64_t b = 0; b < c->batch; ++b)
    for (int64_t h = 0; h < c->heads_q; ++h)
      for (int64_t i = 0; i < c->seq_q; ++i)
        for (int64_t d = 0; d < c->dim_v; ++d)
          fn(b, h, i, d, b * c->out_stride[0] + h * c->out_stride[1] + i * c->out_stride[2] + d);
}

}  // namespace honest
