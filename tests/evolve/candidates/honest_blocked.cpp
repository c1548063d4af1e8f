// Online softmax over blocks of keys, eight partial sums a product: another order of summation than
// the plain loops. Must pass every check.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

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

namespace {

constexpr int kBlock = 32, kMaxDim = 256;

float dot(const float* a, const float* b, int64_t n) {
  float sum[8] = {};
  for (int64_t d = 0; d < n; ++d) sum[d % 8] += a[d] * b[d];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

void load_row(const attune_candidate_call* c, const void* data, int64_t at, int64_t n, float* to) {
  for (int64_t d = 0; d < n; ++d) to[d] = load(c, data, at + d);
}

void row(void* context, int64_t index) {
  const auto* c = static_cast<const attune_candidate_call*>(context);
  const int64_t b = index / (c->heads_q * c->seq_q), h = index / c->seq_q % c->heads_q,
                i = index % c->seq_q, kv = h / (c->heads_q / c->heads_kv);
  float q[kMaxDim], k[kMaxDim], v[kMaxDim], total[kMaxDim] = {}, weight[kBlock];
  load_row(c, c->q, b * c->q_stride[0] + h * c->q_stride[1] + i * c->q_stride[2], c->dim, q);
  float largest = -INFINITY, sum = 0;
  const int64_t keys = key_limit(c, i);
  for (int64_t first = 0; first < keys; first += kBlock) {
    const int64_t n = std::min<int64_t>(kBlock, keys - first);
    float top = largest;
    for (int64_t j = 0; j < n; ++j) {
      load_row(c, c->k, b * c->k_stride[0] + kv * c->k_stride[1] + (first + j) * c->k_stride[2],
               c->dim, k);
      weight[j] = c->scale * dot(q, k, c->dim);
      top = std::max(top, weight[j]);
    }
    const float shrink = expf(largest - top);
    largest = top;
    sum *= shrink;
    for (int64_t d = 0; d < c->dim_v; ++d) total[d] *= shrink;
    for (int64_t j = 0; j < n; ++j) {
      const float w = expf(weight[j] - top);
      sum += w;
      load_row(c, c->v, b * c->v_stride[0] + kv * c->v_stride[1] + (first + j) * c->v_stride[2],
               c->dim_v, v);
      for (int64_t d = 0; d < c->dim_v; ++d) total[d] += w * v[d];
    }
  }
  const int64_t out = b * c->out_stride[0] + h * c->out_stride[1] + i * c->out_stride[2];
  for (int64_t d = 0; d < c->dim_v; ++d) store(c, c->out, out + d, keys > 0 ? total[d] / sum : 0);
  if (c->lse != nullptr)
    c->lse[b * c->lse_stride[0] + h * c->lse_stride[1] + i * c->lse_stride[2]] =
        keys > 0 ? largest + logf(sum) : -INFINITY;
}

}  // namespace

int attune_candidate(const attune_candidate_call* c) {
  c->parallel_for(c->host, c->batch * c->heads_q * c->seq_q, row,
                  const_cast<attune_candidate_call*>(c));
  return 0;
}
