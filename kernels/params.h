// Where the data is: pointers, strides (in elements) and scalars. Passed to a kernel by value;
// shared by host and device.
#pragma once

#include "problem.h"

namespace attune {

// [b][h][s][d], last stride 1. In a ragged batch stride_b is 0 and a sequence starts at row
// cu_seqlens[b].
struct View {
  void* data = nullptr;
  int64_t stride_b = 0, stride_h = 0, stride_s = 0;
};

// Any four strides, 0 to broadcast: masks.
struct View4 {
  void* data = nullptr;
  int64_t stride[4] = {};
};

// Division by a number that only the host knows, as a multiplication: a quotient costs a kernel a
// few cycles instead of a hundred. For dividends below 2^31.
struct Divisor {
  uint32_t divisor = 1, magic = 1u << 31, shift = 31;

  constexpr Divisor() = default;
  constexpr explicit Divisor(uint32_t d) : divisor(d) {
    int log2 = 0;
    while ((uint64_t{1} << log2) < d) ++log2;
    shift = uint32_t(31 + log2);
    magic = uint32_t(((uint64_t{1} << shift) + d - 1) / d);
  }
  ATTUNE_HD constexpr uint32_t quotient(uint32_t n) const {
    return uint32_t(uint64_t(n) * magic >> shift);
  }
};

// How the blocks of a tensor-core kernel are numbered: splits innermost, then the heads of a group,
// then tiles of rows, then groups of heads. The heads of a group run together, so that their K and
// V stay in the L2.
struct BlockDivisors {
  Divisor splits, tiles_of_group, heads_of_group, heads_of_batch, group;
};

struct Params {
  View q, k, v, out;
  View lse;  // float [b][h][i]; data null when not wanted
  View4 mask, block_mask;
  const float* alibi_slopes = nullptr;
  int64_t alibi_stride_b = 0, alibi_stride_h = 0;
  const float* sinks = nullptr;
  int64_t sinks_stride = 0;
  const int32_t* cu_seqlens_q = nullptr;
  const int32_t* cu_seqlens_k = nullptr;
  int64_t cu_stride_q = 1, cu_stride_k = 1;
  float scale = 1;
  float softcap = 0;
  float dropout_p = 0;
  uint64_t dropout_seed = 0, dropout_offset = 0;

  // CUDA alone.
  const void* user_data = nullptr;  // what the caller's own code reads
  void* workspace = nullptr;        // device memory; the plan says how much of it is used, and how
  int64_t rows_q = 0, rows_k = 0;   // of a head in memory: the sequence, or all of them when ragged

  // Of each sequence, how many keys are used. At the end, so that the fields before it stay where
  // they are.
  const int32_t* key_lengths = nullptr;
  int64_t key_lengths_stride = 1;
};

// How a plan deals the work to the blocks of its kernels.
struct Blocks {
  int32_t splits = 1;      // parts of the key range (split-KV)
  BlockDivisors divisors;  // what block numbers are taken apart by
  uint32_t tiles = 0;      // of query rows, times splits: what blocks walk over
};

// What every CUDA kernel takes, by value.
struct KernelArgs {
  Problem problem;
  Params params;
  Blocks blocks;
};

// What TMA knows of a tensor: CUtensorMap, filled in by the driver.
struct alignas(64) TensorMap {
  uint64_t words[16];
};
// The maps of a forward kernel, in the order of Plan::maps. A kernel may have fewer, never others.
struct TensorMaps {
  TensorMap q, k, v, out, mask;
};

// The gradients' side of a backward call; data null where not wanted.
struct GradParams {
  View dout, dq, dk, dv;
  View dlse;    // as lse: read where given
  View4 dmask;  // float; stride 0 where the mask broadcasts: contributions add up
  int64_t dmask_shape[4] = {};
  float* dsinks = nullptr;
  int64_t dsinks_stride = 0;
};

// What every CUDA kernel of a backward pass takes, by value.
struct GradientArgs {
  KernelArgs forward;
  GradParams grads;
};

// What a backward pass on CUDA knows of a query row before it walks the keys: one with the score s
// weighs weight * e^(s - shift). The workspace begins with the states, [b][h][i] over the longest
// sequences.
struct alignas(16) RowState {
  float delta;          // sum(P * dP), which is dO . O, less the gradient of LSE
  float shift, weight;  // weight 0: the row looks at no key
  float sink;           // what the sink weighs
};

// One sequence of the batch: its lengths, its first rows, and the diagonal.
struct Sequence {
  int64_t sq, sk;  // lengths
  int64_t q0, k0;  // first row in q/out, in k/v (0 unless ragged)
  int64_t shift;   // position(i) = i + shift

  ATTUNE_HD static constexpr Sequence of(const Problem& p, const Params& a, int64_t b) {
    Sequence s{p.seq_q, p.seq_k, 0, 0, 0};
    if (p.ragged) {
      s.q0 = a.cu_seqlens_q[b * a.cu_stride_q];
      s.sq = a.cu_seqlens_q[(b + 1) * a.cu_stride_q] - s.q0;
      s.k0 = a.cu_seqlens_k[b * a.cu_stride_k];
      s.sk = a.cu_seqlens_k[(b + 1) * a.cu_stride_k] - s.k0;
    }
    if (p.key_lengths) {
      // On CUDA nobody has checked it: whatever it is, no key outside the tensor is read.
      const int64_t used = a.key_lengths[b * a.key_lengths_stride];
      s.sk = used < 0 ? 0 : used < s.sk ? used : s.sk;
    }
    s.shift = p.alignment == Alignment::bottom_right ? s.sk - s.sq : 0;
    return s;
  }
};

struct KeyRange {
  int64_t begin, end;  // empty when begin >= end
};

// The keys that causal limit, window and sequence length leave to row i.
ATTUNE_HD constexpr KeyRange key_range(const Problem& p, const Sequence& s, int64_t i) {
  const int64_t position = i + s.shift;
  KeyRange r{0, s.sk};
  if (p.causal && position + 1 < r.end) r.end = position + 1;
  // Written as differences, so that a window near the largest integer cannot overflow.
  if (p.window_right != kNoLimit && p.window_right < r.end - 1 - position)
    r.end = position + p.window_right + 1;
  if (p.window_left != kNoLimit && position > p.window_left) r.begin = position - p.window_left;
  return r;
}

}  // namespace attune
