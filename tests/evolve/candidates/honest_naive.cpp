// Plain loops: scores of a row, their softmax, the weighted sum. Must pass every check.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <vector>

#include "candidate.h"

// ---- fp16 and bf16, a value at a time, rounding to nearest even ----

static float from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof(f));
  return f;
}

static uint32_t to_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof(bits));
  return bits;
}

static float load(const attune_candidate_call* c, const void* data, int64_t at) {
  if (c->dtype == 1) return ((const float*)data)[at];
  const uint32_t h = ((const uint16_t*)data)[at];
  if (c->dtype == 3) return from_bits(h << 16);
  const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
  const float magnitude = exponent == 0 ? (float)fraction * 0x1p-24f
                                        : from_bits((exponent + 112) << 23 | fraction << 13);
  return sign ? -magnitude : magnitude;
}

static uint16_t to_bf16(float f) {
  const uint32_t u = to_bits(f);
  if (f != f) return (uint16_t)(u >> 16 | 0x40u);
  return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static uint16_t to_f16(float f) {
  const uint32_t u = to_bits(f), sign = u >> 16 & 0x8000u;
  const float magnitude = from_bits(u & 0x7fffffffu);
  if (f != f) return (uint16_t)(sign | 0x7e00u);
  if (magnitude >= 65520.f) return (uint16_t)(sign | 0x7c00u);
  // Below 2^-14 steps are of 2^-24: adding 0.5 leaves them in the last bits, rounded.
  if (magnitude < 0x1p-14f) return (uint16_t)(sign | (to_bits(magnitude + 0.5f) - 0x3f000000u));
  const uint32_t m = to_bits(magnitude);
  return (uint16_t)(sign | ((m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13));
}

static void store(const attune_candidate_call* c, void* data, int64_t at, float x) {
  if (c->dtype == 1) ((float*)data)[at] = x;
  if (c->dtype == 2) ((uint16_t*)data)[at] = to_f16(x);
  if (c->dtype == 3) ((uint16_t*)data)[at] = to_bf16(x);
}

// Keys that row i may look at: [0, limit).
static int64_t key_limit(const attune_candidate_call* c, int64_t i) {
  if (c->causal == 0) return c->seq_k;
  const int64_t end = i + 1 + (c->causal == 2 ? c->seq_k - c->seq_q : 0);
  return end < 0 ? 0 : end < c->seq_k ? end : c->seq_k;
}

// ---- Attention ----

static void row(const attune_candidate_call* c, int64_t index) {
  const int64_t b = index / (c->heads_q * c->seq_q), h = index / c->seq_q % c->heads_q,
                i = index % c->seq_q, kv = h / (c->heads_q / c->heads_kv);
  const int64_t q = b * c->q_stride[0] + h * c->q_stride[1] + i * c->q_stride[2],
                k = b * c->k_stride[0] + kv * c->k_stride[1],
                v = b * c->v_stride[0] + kv * c->v_stride[1],
                out = b * c->out_stride[0] + h * c->out_stride[1] + i * c->out_stride[2];
  const int64_t keys = key_limit(c, i);
  std::vector<float> weight(keys);
  float largest = -INFINITY;
  for (int64_t j = 0; j < keys; ++j) {
    float dot = 0;
    for (int64_t d = 0; d < c->dim; ++d)
      dot += load(c, c->q, q + d) * load(c, c->k, k + j * c->k_stride[2] + d);
    weight[j] = c->scale * dot;
    largest = fmaxf(largest, weight[j]);
  }
  float sum = 0;
  for (float& w : weight) sum += w = expf(w - largest);
  for (int64_t d = 0; d < c->dim_v; ++d) {
    float total = 0;
    for (int64_t j = 0; j < keys; ++j)
      total += weight[j] * load(c, c->v, v + j * c->v_stride[2] + d);
    store(c, c->out, out + d, keys > 0 ? total / sum : 0);
  }
  if (c->lse != nullptr)
    c->lse[b * c->lse_stride[0] + h * c->lse_stride[1] + i * c->lse_stride[2]] =
        keys > 0 ? largest + logf(sum) : -INFINITY;
}

int attune_candidate(const attune_candidate_call* c) {
  c->parallel_for(
      c->host, c->batch * c->heads_q * c->seq_q,
      [](void* context, int64_t index) {
        row(static_cast<const attune_candidate_call*>(context), index);
      },
      const_cast<attune_candidate_call*>(c));
  return 0;
}
