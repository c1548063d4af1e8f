// Attention with an online softmax: keys come in tiles, and scores never leave the first-level
// cache. The largest score so far and the sum of weights are kept, and what was summed before is
// scaled when a larger score appears.
#include <cmath>
#include <cstddef>
#include <vector>

// EVOLVE-BLOCK-START attention
constexpr int KEYS = 64;  // EVOLVE-PARAM KEYS {32,64,128,256} hardware: keys of a tile

// e^x for x <= 0: 2^n times a polynomial for the rest, which is within -0.5..0.5. Unlike std::exp,
// the compiler computes it for many numbers at once.
static inline float exp_below_zero(float x) {
  float t = x * 1.44269504f;
  t = t < -126.0f ? -126.0f : t;
  const int n = int(t - 0.5f);
  const float f = t - float(n);
  float p = 1.54035304e-4f;
  p = p * f + 1.33335581e-3f;
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  return p * __builtin_bit_cast(float, (n + 127) << 23);
}

static void attend(const float* q, const float* k, const float* v, float* out, int keys,
                   int head_dim, float scale) {
  float weights[KEYS];
  float largest = -INFINITY, sum = 0;
  for (int d = 0; d < head_dim; ++d) out[d] = 0;
  for (int first = 0; first < keys; first += KEYS) {
    const int count = keys - first < KEYS ? keys - first : KEYS;
    float top = largest;
    for (int j = 0; j < count; ++j) {
      const float* row = k + std::size_t(first + j) * head_dim;
      float dot = 0;
      for (int d = 0; d < head_dim; ++d) dot += q[d] * row[d];
      weights[j] = dot * scale;
      top = top < weights[j] ? weights[j] : top;
    }
    const float shrink = first == 0 ? 0 : exp_below_zero(largest - top);
    sum *= shrink;
    for (int d = 0; d < head_dim; ++d) out[d] *= shrink;
    for (int j = 0; j < count; ++j) weights[j] = exp_below_zero(weights[j] - top);
    for (int j = 0; j < count; ++j) {
      const float* row = v + std::size_t(first + j) * head_dim;
      sum += weights[j];
      for (int d = 0; d < head_dim; ++d) out[d] += weights[j] * row[d];
    }
    largest = top;
  }
  for (int d = 0; d < head_dim; ++d) out[d] /= sum;
}

static void attention(const float* Q, const float* K, const float* V, float* O, int batch,
                      int heads, int seq_len, int head_dim, bool causal) {
  const float scale = 1.0f / std::sqrt(float(head_dim));
  const std::size_t of_a_head = std::size_t(seq_len) * head_dim;
  for (int n = 0; n < batch * heads; ++n)
    for (int i = 0; i < seq_len; ++i) {
      const std::size_t row = n * of_a_head + std::size_t(i) * head_dim;
      attend(Q + row, K + n * of_a_head, V + n * of_a_head, O + row, causal ? i + 1 : seq_len,
             head_dim, scale);
    }
}
// EVOLVE-BLOCK-END

extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal) {
  attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);
}
