/* The contract of a program that is a candidate: one function in C, one shared object.
 *
 * It computes O = softmax(scale Q K^T) V for fp32, fp16 or bf16 tensors [b][h][s][d] whose last
 * stride is 1, key heads shared by groups of query heads, with a causal limit where asked for. It
 * may use threads only through parallel_for, keeps nothing between calls, and returns 0. A CUDA
 * program is the same with a kernel: compiled by nvcc, it enqueues its work and returns.
 *
 * A program for the CPU may define the backward pass too, or it alone. */
#ifndef ATTUNE_EVOLVE_CANDIDATE_H_
#define ATTUNE_EVOLVE_CANDIDATE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*attune_candidate_task)(void* context, int64_t index);

typedef struct attune_candidate_call {
  int32_t dtype;  /* 1: fp32, 2: fp16, 3: bf16 */
  int32_t causal; /* 0: no; 1: top-left, key j <= i; 2: bottom-right, key j <= i + seq_k - seq_q */
  int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim, dim_v;
  float scale;
  const void *q, *k, *v;
  void* out;
  float* lse; /* [b][h][i], natural logarithm; NULL: not wanted */
  /* of b, h, s; in elements */
  int64_t q_stride[3], k_stride[3], v_stride[3], out_stride[3], lse_stride[3];
  /* task(context, n) for n in [0, count), on up to `threads` threads; returns when all are done */
  void (*parallel_for)(void* host, int64_t count, attune_candidate_task task, void* context);
  void* host;
  int32_t threads;
  /* of a CUDA program: pointers are of the device, and all work goes into this stream */
  void* stream;
} attune_candidate_call;

/* The gradients of q, k and v. `forward` has the inputs, and in out and lse what the forward pass
 * gave: all of it is read, none of it is written, and lse is not NULL. Every element of dq, dk and
 * dv is written; dk and dv are sums over the query heads of a group. The rounding of lse is that of
 * a float: where scores are large (1e4), weights need the row's maximum and sum once more. */
typedef struct attune_candidate_backward_call {
  attune_candidate_call forward;
  const void* dout;  /* the gradient of out */
  const float* dlse; /* of lse; NULL: it has none */
  void *dq, *dk, *dv;
  int64_t dout_stride[3], dlse_stride[3], dq_stride[3], dk_stride[3], dv_stride[3];
} attune_candidate_backward_call;

/* What the program defines, one or both, and all that it shows. */
__attribute__((visibility("default"))) int attune_candidate(const attune_candidate_call* call);
__attribute__((visibility("default"))) int attune_candidate_backward(
    const attune_candidate_backward_call* call);

#ifdef __cplusplus
}
#endif
#endif
