// Attention by one thread a row: slow, and right. The fixtures differ from it in one thing each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "candidate.h"

#ifndef ATTUNE_ROUND  // what a fixture does to every number in between
#define ATTUNE_ROUND(x) (x)
#endif
#ifndef ATTUNE_TOP  // and to a row's maximum
#define ATTUNE_TOP(top) (top)
#endif

struct Args {
  attune_candidate_call c;
};

__device__ inline float read(const Args& a, const void* from, int64_t at) {
  if (a.c.dtype == 1) return static_cast<const float*>(from)[at];
  if (a.c.dtype == 2) return __half2float(static_cast<const __half*>(from)[at]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
}

__device__ inline void write(const Args& a, void* to, int64_t at, float value) {
  if (a.c.dtype == 1) static_cast<float*>(to)[at] = value;
  if (a.c.dtype == 2) static_cast<__half*>(to)[at] = __float2half(value);
  if (a.c.dtype == 3) static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16(value);
}

__device__ inline int64_t place(const int64_t (&stride)[3], int64_t b, int64_t h, int64_t s) {
  return b * stride[0] + h * stride[1] + s * stride[2];
}

__device__ inline float score(const Args& a, int64_t b, int64_t h, int64_t i, int64_t j) {
  const attune_candidate_call& c = a.c;
  const int64_t q = place(c.q_stride, b, h, i);
  const int64_t k = place(c.k_stride, b, h / (c.heads_q / c.heads_kv), j);
  float sum = 0;
  for (int64_t d = 0; d < c.dim; ++d)
    sum = ATTUNE_ROUND(sum + read(a, c.q, q + d) * read(a, c.k, k + d));
  return sum * c.scale;
}

// One row of the result.
__device__ inline void honest_row(const Args& a, int64_t row) {
  const attune_candidate_call& c = a.c;
  const int64_t i = row % c.seq_q, h = row / c.seq_q % c.heads_q, b = row / c.seq_q / c.heads_q;
  int64_t end = c.seq_k;
  if (c.causal != 0) end = min(end, i + 1 + (c.causal == 2 ? c.seq_k - c.seq_q : 0));
  float top = -INFINITY, sum = 0, o[256];
  for (int64_t d = 0; d < c.dim_v; ++d) o[d] = 0;
  for (int64_t j = 0; j < end; ++j) top = fmaxf(top, score(a, b, h, i, j));
  top = ATTUNE_TOP(top);
  for (int64_t j = 0; j < end; ++j) {
    const float w = ATTUNE_ROUND(expf(score(a, b, h, i, j) - top));
    const int64_t v = place(c.v_stride, b, h / (c.heads_q / c.heads_kv), j);
    sum += w;
    for (int64_t d = 0; d < c.dim_v; ++d) o[d] = ATTUNE_ROUND(o[d] + w * read(a, c.v, v + d));
  }
  const int64_t out = place(c.out_stride, b, h, i);
  for (int64_t d = 0; d < c.dim_v; ++d) write(a, c.out, out + d, sum > 0 ? o[d] / sum : 0);
  if (c.lse != nullptr) c.lse[place(c.lse_stride, b, h, i)] = sum > 0 ? top + logf(sum) : -INFINITY;
}

static __global__ void honest_rows(Args a) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row < a.c.batch * a.c.heads_q * a.c.seq_q) honest_row(a, row);
}

constexpr int kThreads = 32;
inline int blocks_of(const attune_candidate_call* c) {
  return int((c->batch * c->heads_q * c->seq_q + kThreads - 1) / kThreads);
}

inline int honest(const attune_candidate_call* call, cudaStream_t stream) {
  honest_rows<<<blocks_of(call), kThreads, 0, stream>>>(Args{*call});
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
inline cudaStream_t stream_of(const attune_candidate_call* call) {
  return static_cast<cudaStream_t>(call->stream);
}
