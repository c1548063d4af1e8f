// Attention in plain loops: a program to begin with. `attune judge naive.cpp` says whether it is
// right, and how fast; `attune evolve naive.cpp --with catalogue` makes a faster one of it.
//
// The contract: O = softmax(Q K^T / sqrt(head_dim)) V for each batch and head. Q, K, V and O are
// float32, contiguous [batch][heads][seq_len][head_dim]. With `causal`, query i sees the keys
// j <= i alone. One thread; nothing is kept between calls; every batch, heads and seq_len from 1,
// every head_dim that is a multiple of 8, up to 256.
#include <cmath>
#include <cstddef>
#include <vector>

// EVOLVE-BLOCK-START attention
// One row of one head: `q` and `out` are the row's own, `k` and `v` are all rows of the head.
// `weights` has room for `keys` numbers.
static void attend(const float* q, const float* k, const float* v, float* out, int keys,
                   int head_dim, float scale, float* weights) {
  // 1. Scores of the keys that the row may see, and the largest of them.
  float largest = -INFINITY;
  for (int j = 0; j < keys; ++j) {
    float dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += q[d] * k[std::size_t(j) * head_dim + d];
    weights[j] = dot * scale;
    largest = std::fmax(largest, weights[j]);
  }
  // 2. Softmax. Without the subtraction, exp would overflow for scores above 88.
  float sum = 0;
  for (int j = 0; j < keys; ++j) {
    weights[j] = std::exp(weights[j] - largest);
    sum += weights[j];
  }
  // 3. The mean of the rows of V, by weight.
  for (int d = 0; d < head_dim; ++d) out[d] = 0;
  for (int j = 0; j < keys; ++j)
    for (int d = 0; d < head_dim; ++d) out[d] += weights[j] * v[std::size_t(j) * head_dim + d];
  for (int d = 0; d < head_dim; ++d) out[d] /= sum;
}

static void attention(const float* Q, const float* K, const float* V, float* O, int batch,
                      int heads, int seq_len, int head_dim, bool causal) {
  const float scale = 1.0f / std::sqrt(float(head_dim));
  const std::size_t of_a_head = std::size_t(seq_len) * head_dim;
  std::vector<float> weights(seq_len);
  for (int n = 0; n < batch * heads; ++n)  // batches and heads do the same, one after the other
    for (int i = 0; i < seq_len; ++i) {
      const std::size_t row = n * of_a_head + std::size_t(i) * head_dim;
      attend(Q + row, K + n * of_a_head, V + n * of_a_head, O + row, causal ? i + 1 : seq_len,
             head_dim, scale, weights.data());
    }
}
// EVOLVE-BLOCK-END

// What is called. Its name and its arguments stay.
extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal) {
  attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal);
}
