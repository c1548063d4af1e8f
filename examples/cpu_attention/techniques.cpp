// Attention with each technique behind a switch, so that one program measures what each brings:
// bench/techniques.py sets the switches one after the other and prints the table. It is the twin of
// examples/cuda_attention/catalogue/techniques.cu, for a machine without a GPU.
#include <cmath>
#include <cstddef>
#include <vector>

// EVOLVE-BLOCK-START attention
// TILING: a tile of keys serves all queries before the next one is read. Without ONLINE_SOFTMAX
// there are two walks over the keys, the first one for the maxima. VECTOR_LAYOUT: the keys of a
// tile are transposed, so that the compiler computes many scores at once, and their exponentials
// too. REGISTER_BLOCKING: a key that was loaded serves four queries, and four rows of V are added
// at once.
constexpr int TILING = 1;             // EVOLVE-PARAM TILING {0,1} algorithm: tiles of keys
constexpr int ONLINE_SOFTMAX = 1;     // EVOLVE-PARAM ONLINE_SOFTMAX {0,1} algorithm: one walk
constexpr int CAUSAL_SKIPPING = 1;    // EVOLVE-PARAM CAUSAL_SKIPPING {0,1} algorithm: fewer keys
constexpr int VECTOR_LAYOUT = 1;      // EVOLVE-PARAM VECTOR_LAYOUT {0,1} implementation: columns
constexpr int REGISTER_BLOCKING = 1;  // EVOLVE-PARAM REGISTER_BLOCKING {0,1} implementation: fours
constexpr int KEYS = 64;              // EVOLVE-PARAM KEYS {32,64,128,256} hardware: keys of a tile

constexpr int kLanes = 32;  // scores of a query in registers
constexpr int kRows = REGISTER_BLOCKING ? 4 : 1, kJoin = kRows;

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

static inline float weight_of(float x) { return VECTOR_LAYOUT ? exp_below_zero(x) : std::exp(x); }

// Scores of kRows queries and the keys of a tile; `width` of them lie beside each other.
static void tile_scores(const float* const* q, const float* keys, int count, int width,
                        int head_dim, float scale, float* scores) {
  if (VECTOR_LAYOUT) {  // keys[d][j]
    for (int first = 0; first < width; first += kLanes) {
      float sums[kRows][kLanes] = {};
      for (int d = 0; d < head_dim; ++d)
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < kLanes; ++c)
            sums[r][c] += q[r][d] * keys[std::size_t(d) * width + first + c];
      for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kLanes; ++c) scores[r * width + first + c] = sums[r][c] * scale;
    }
  } else {  // keys[j][d]
    for (int j = 0; j < count; ++j) {
      float sums[kRows] = {};
      for (int d = 0; d < head_dim; ++d)
        for (int r = 0; r < kRows; ++r) sums[r] += q[r][d] * keys[std::size_t(j) * head_dim + d];
      for (int r = 0; r < kRows; ++r) scores[r * width + j] = sums[r] * scale;
    }
  }
}

// Adds keys to a query: scores become weights, and the rows of V are added by weight. `shrink` is
// what was summed before multiplied by.
static void add_values(float* scores, int count, const float* v, int head_dim, float top,
                       float shrink, float* sum, float* out) {
  float total = 0;
  for (int j = 0; j < count; ++j) scores[j] = weight_of(scores[j] - top);
  for (int j = 0; j < count; ++j) total += scores[j];
  *sum = *sum * shrink + total;
  if (shrink != 1)
    for (int d = 0; d < head_dim; ++d) out[d] *= shrink;
  int j = 0;
  for (; j + kJoin <= count; j += kJoin)
    for (int d = 0; d < head_dim; ++d) {
      float more = out[d];
      for (int n = 0; n < kJoin; ++n) more += scores[j + n] * v[std::size_t(j + n) * head_dim + d];
      out[d] = more;
    }
  for (; j < count; ++j)
    for (int d = 0; d < head_dim; ++d) out[d] += scores[j] * v[std::size_t(j) * head_dim + d];
}

struct Memory {
  std::vector<float> keys, scores, largest, sum;
};

static void attend_head(const float* q, const float* k, const float* v, float* out, int seq_len,
                        int head_dim, bool causal, Memory& memory) {
  const float scale = 1.0f / std::sqrt(float(head_dim));
  const int tile = TILING ? KEYS : seq_len;
  const int width = (tile + kLanes - 1) / kLanes * kLanes;
  memory.scores.resize(std::size_t(kRows) * width);
  memory.largest.assign(seq_len, -INFINITY);
  memory.sum.assign(seq_len, 0);
  float *const largest = memory.largest.data(), *const scores = memory.scores.data();
  for (std::size_t n = 0; n < std::size_t(seq_len) * head_dim; ++n) out[n] = 0;

  for (int walk = ONLINE_SOFTMAX ? 1 : 0; walk < 2; ++walk)  // 0: for the maxima alone
    for (int first = 0; first < seq_len; first += tile) {
      const int count = seq_len - first < tile ? seq_len - first : tile;
      const float* keys = k + std::size_t(first) * head_dim;
      if (VECTOR_LAYOUT) {
        memory.keys.assign(std::size_t(head_dim) * width, 0);
        for (int j = 0; j < count; ++j)
          for (int d = 0; d < head_dim; ++d)
            memory.keys[std::size_t(d) * width + j] = keys[std::size_t(j) * head_dim + d];
        keys = memory.keys.data();
      }
      const bool skips = CAUSAL_SKIPPING && causal;
      for (int i = skips ? first / kRows * kRows : 0; i < seq_len; i += kRows) {
        const float* rows[kRows];
        for (int r = 0; r < kRows; ++r)
          rows[r] = q + std::size_t(i + r < seq_len ? i + r : seq_len - 1) * head_dim;
        // Of the keys that some of these rows may see.
        const int ahead = i + kRows - first;
        const int some = skips && ahead < count ? ahead : count;
        const int wide = (some + kLanes - 1) / kLanes * kLanes;
        tile_scores(rows, keys, some, VECTOR_LAYOUT ? width : wide, head_dim, scale, scores);
        for (int r = 0; r < kRows && i + r < seq_len; ++r) {
          float* row = scores + std::size_t(r) * (VECTOR_LAYOUT ? width : wide);
          int seen = causal ? i + r + 1 - first : count;
          seen = seen < 0 ? 0 : seen < count ? seen : count;
          if (skips && seen == 0) continue;
          if (!skips)
            for (int j = seen; j < count; ++j) row[j] = -INFINITY;
          const int used = skips ? seen : count;
          const float before = largest[i + r];
          float top = before;
          if (ONLINE_SOFTMAX || walk == 0)
            for (int j = 0; j < used; ++j) top = top < row[j] ? row[j] : top;
          largest[i + r] = top;
          if (walk == 0) continue;
          const float shrink = before == top         ? 1
                               : before == -INFINITY ? 0
                                                     : weight_of(before - top);
          add_values(row, used, v + std::size_t(first) * head_dim, head_dim, top, shrink,
                     &memory.sum[i + r], out + std::size_t(i + r) * head_dim);
        }
      }
    }
  for (int i = 0; i < seq_len; ++i)
    for (int d = 0; d < head_dim; ++d) out[std::size_t(i) * head_dim + d] /= memory.sum[i];
}

static void attention(const float* Q, const float* K, const float* V, float* O, int batch,
                      int heads, int seq_len, int head_dim, bool causal) {
  const std::size_t of_a_head = std::size_t(seq_len) * head_dim;
  Memory memory;
  for (int n = 0; n < batch * heads; ++n)
    attend_head(Q + n * of_a_head, K + n * of_a_head, V + n * of_a_head, O + n * of_a_head, seq_len,
                head_dim, causal, memory);
}
// EVOLVE-BLOCK-END

// What is called. Its name and its arguments stay.
extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal) {
  attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);
}
