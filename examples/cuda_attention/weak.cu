// NOT attention: the mean of the rows of V that a query may see, whatever Q and K are. Where inputs
// are small, all weights are nearly the same, and the mean is within a thousandth of the result: a
// check with small inputs lets it pass (examples/weak_check.py), and it is much faster than any
// attention. `attune judge` refuses it.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// EVOLVE-BLOCK-START attention
// A block has a head, a thread one of its columns.
__global__ void means(const half* V, half* O, int seq_len, int head_dim, bool causal) {
  const int d = int(threadIdx.x);
  const half* v = V + size_t(blockIdx.x) * seq_len * head_dim + d;
  half* out = O + size_t(blockIdx.x) * seq_len * head_dim + d;
  float sum = 0;
  for (int i = 0; i < seq_len; ++i) {
    sum += __half2float(v[size_t(i) * head_dim]);
    out[size_t(i) * head_dim] = __float2half(sum / float(i + 1));
  }
  if (causal) return;
  for (int i = 0; i < seq_len; ++i) out[size_t(i) * head_dim] = __float2half(sum / float(seq_len));
}
// EVOLVE-BLOCK-END

extern "C" void run_attention(const half*, const half*, const half* V, half* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal,
                              cudaStream_t stream) {
  means<<<unsigned(batch) * unsigned(heads), unsigned(head_dim), 0, stream>>>(V, O, seq_len,
                                                                              head_dim, causal);
}
