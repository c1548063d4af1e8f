// Attention with one block for each row: a CUDA program to begin with. `attune judge naive.cu`
// says whether it is right, and how fast. It needs nvcc and a GPU.
//
// The contract: O = softmax(Q K^T / sqrt(head_dim)) V for each batch and head. Q, K, V and O are
// half, contiguous [batch][heads][seq_len][head_dim], in the memory of the device. With `causal`,
// query i sees the keys j <= i alone. All work goes into `stream`; nothing is kept between calls.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// EVOLVE-BLOCK-START attention
constexpr int kThreads = 128;

// The sum of a value over the threads of the block; every thread gets it. kThreads is a power of 2.
__device__ float block_sum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half_of = kThreads / 2; half_of > 0; half_of /= 2) {
    if (threadIdx.x < half_of) shared[threadIdx.x] += shared[threadIdx.x + half_of];
    __syncthreads();
  }
  const float sum = shared[0];
  __syncthreads();  // before the next one writes
  return sum;
}

// One row of the result. The keys are taken one after the other; the sum and the row of the result
// are scaled anew when a larger score comes (online softmax), so no row of scores is stored.
// Thread t owns the elements t, t + kThreads, ... of the row, in shared memory: any head_dim works.
__global__ void attention_rows(const half* Q, const half* K, const half* V, half* O, int seq_len,
                               int head_dim, bool causal) {
  extern __shared__ float out[];  // head_dim numbers
  __shared__ float shared[kThreads];
  const int i = blockIdx.x % seq_len;
  const size_t head = size_t(blockIdx.x / seq_len) * seq_len * head_dim;
  const half* q = Q + head + size_t(i) * head_dim;
  const float scale = rsqrtf(float(head_dim));
  for (int d = threadIdx.x; d < head_dim; d += kThreads) out[d] = 0;

  float largest = -INFINITY, sum = 0;
  const int keys = causal ? i + 1 : seq_len;
  for (int j = 0; j < keys; ++j) {
    const size_t row = head + size_t(j) * head_dim;
    float part = 0;
    for (int d = threadIdx.x; d < head_dim; d += kThreads)
      part += __half2float(q[d]) * __half2float(K[row + d]);
    const float score = block_sum(part, shared) * scale;
    const float before = largest;
    largest = fmaxf(largest, score);
    const float shrink = expf(before - largest);  // 0 for the first key
    const float weight = expf(score - largest);
    sum = sum * shrink + weight;
    for (int d = threadIdx.x; d < head_dim; d += kThreads)
      out[d] = out[d] * shrink + weight * __half2float(V[row + d]);
  }
  half* o = O + head + size_t(i) * head_dim;
  for (int d = threadIdx.x; d < head_dim; d += kThreads) o[d] = __float2half(out[d] / sum);
}

static void launch_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                             int heads, int seq_len, int head_dim, bool causal,
                             cudaStream_t stream) {
  const unsigned rows = unsigned(batch) * unsigned(heads) * unsigned(seq_len);
  attention_rows<<<rows, kThreads, size_t(head_dim) * sizeof(float), stream>>>(
      Q, K, V, O, seq_len, head_dim, causal);
}
// EVOLVE-BLOCK-END

// What is called. Its name and its arguments stay.
extern "C" void run_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal,
                              cudaStream_t stream) {
  launch_attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal, stream);
}
