// NOT attention: the mean of the rows of V that a query may see, whatever Q and K are. Where inputs
// are small, all weights are nearly the same, and the mean is within a thousandth of the result: a
// check with small inputs lets it pass (examples/weak_check.py), and it is much faster than any
// attention. `attune judge` refuses it.
#include <cstddef>

// EVOLVE-BLOCK-START attention
static void attention(const float* V, float* O, int batch, int heads, int seq_len, int head_dim,
                      bool causal) {
  for (int n = 0; n < batch * heads; ++n) {
    const float* v = V + std::size_t(n) * seq_len * head_dim;
    float* out = O + std::size_t(n) * seq_len * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      float sum = 0;
      for (int i = 0; i < seq_len; ++i) {
        sum += v[std::size_t(i) * head_dim + d];
        out[std::size_t(i) * head_dim + d] = sum / float(i + 1);
      }
      if (!causal)
        for (int i = 0; i < seq_len; ++i) out[std::size_t(i) * head_dim + d] = sum / float(seq_len);
    }
  }
}
// EVOLVE-BLOCK-END

extern "C" void run_attention(const float*, const float*, const float* V, float* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal) {
  attention(V, O, batch, heads, seq_len, head_dim, causal);
}
