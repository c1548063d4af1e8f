// Attention in tiles: a tile of keys is transposed once and used by all queries, a few at a time,
// so that scores are computed in registers. The softmax is online: each query keeps its largest
// score and its sum of weights.
#include <cmath>
#include <cstddef>
#include <vector>

// EVOLVE-BLOCK-START attention
constexpr int KEYS = 64;   // EVOLVE-PARAM KEYS {32,64,128,256} hardware: keys of a tile
constexpr int ROWS = 4;    // EVOLVE-PARAM ROWS {1,2,4,6,8} implementation: queries at a time
constexpr int LANES = 16;  // EVOLVE-PARAM LANES {8,16,32} hardware: scores of a query in registers
constexpr int JOIN = 4;    // EVOLVE-PARAM JOIN {1,2,4,8} implementation: rows of V added at once

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

// Scores of ROWS queries and all keys of a tile: scores[r][j] = q[r] . key j.
static void tile_scores(const float* const* q, const float* keys, int head_dim, float scale,
                        float (*scores)[KEYS]) {
  for (int first = 0; first < KEYS; first += LANES) {
    float sums[ROWS][LANES] = {};
    for (int d = 0; d < head_dim; ++d)
      for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < LANES; ++c) sums[r][c] += q[r][d] * keys[d * KEYS + first + c];
    for (int r = 0; r < ROWS; ++r)
      for (int c = 0; c < LANES; ++c) scores[r][first + c] = sums[r][c] * scale;
  }
}

// Adds a tile to one query: scores become weights, and the rows of V are added by weight.
static void add_tile(float* scores, int count, const float* v, int head_dim, float* largest,
                     float* sum, float* out) {
  float top = *largest;
  for (int j = 0; j < count; ++j) top = top < scores[j] ? scores[j] : top;
  const float shrink = *largest == -INFINITY ? 0 : exp_below_zero(*largest - top);
  float total = 0;
  for (int j = 0; j < count; ++j) scores[j] = exp_below_zero(scores[j] - top);
  for (int j = 0; j < count; ++j) total += scores[j];
  for (int d = 0; d < head_dim; ++d) out[d] *= shrink;
  int j = 0;
  for (; j + JOIN <= count; j += JOIN)
    for (int d = 0; d < head_dim; ++d) {
      float more = out[d];
      for (int n = 0; n < JOIN; ++n) more += scores[j + n] * v[std::size_t(j + n) * head_dim + d];
      out[d] = more;
    }
  for (; j < count; ++j)
    for (int d = 0; d < head_dim; ++d) out[d] += scores[j] * v[std::size_t(j) * head_dim + d];
  *sum = *sum * shrink + total;
  *largest = top;
}

static void attend_head(const float* q, const float* k, const float* v, float* out, int seq_len,
                        int head_dim, bool causal, std::vector<float>& keys,
                        std::vector<float>& largest, std::vector<float>& sum) {
  const float scale = 1.0f / std::sqrt(float(head_dim));
  largest.assign(seq_len, -INFINITY);
  sum.assign(seq_len, 0);
  for (std::size_t n = 0; n < std::size_t(seq_len) * head_dim; ++n) out[n] = 0;
  for (int first = 0; first < seq_len; first += KEYS) {
    const int count = seq_len - first < KEYS ? seq_len - first : KEYS;
    keys.assign(std::size_t(head_dim) * KEYS, 0);
    for (int j = 0; j < count; ++j)
      for (int d = 0; d < head_dim; ++d)
        keys[d * KEYS + j] = k[std::size_t(first + j) * head_dim + d];
    for (int i = causal ? first / ROWS * ROWS : 0; i < seq_len; i += ROWS) {
      const float* rows[ROWS];
      for (int r = 0; r < ROWS; ++r)
        rows[r] = q + std::size_t(i + r < seq_len ? i + r : seq_len - 1) * head_dim;
      float scores[ROWS][KEYS];
      tile_scores(rows, keys.data(), head_dim, scale, scores);
      for (int r = 0; r < ROWS && i + r < seq_len; ++r) {
        const int seen = causal && i + r + 1 - first < count ? i + r + 1 - first : count;
        if (seen > 0)
          add_tile(scores[r], seen, v + std::size_t(first) * head_dim, head_dim, &largest[i + r],
                   &sum[i + r], out + std::size_t(i + r) * head_dim);
      }
    }
  }
  for (int i = 0; i < seq_len; ++i)
    for (int d = 0; d < head_dim; ++d) out[std::size_t(i) * head_dim + d] /= sum[i];
}

static void attention(const float* Q, const float* K, const float* V, float* O, int batch,
                      int heads, int seq_len, int head_dim, bool causal) {
  const std::size_t of_a_head = std::size_t(seq_len) * head_dim;
  std::vector<float> keys, largest, sum;
  for (int n = 0; n < batch * heads; ++n)
    attend_head(Q + n * of_a_head, K + n * of_a_head, V + n * of_a_head, O + n * of_a_head, seq_len,
                head_dim, causal, keys, largest, sum);
}
// EVOLVE-BLOCK-END

extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal) {
  attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);
}
