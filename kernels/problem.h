// What is computed. Shared by host and device: no STL, no toolkit header. It is the key of
// selection and of the kernel cache.
#pragma once

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

#ifdef __CUDACC__
#define ATTUNE_HD __host__ __device__
#else
#define ATTUNE_HD
#endif

namespace attune {

enum class DType : int32_t { f32 = 1, f16 = 2, bf16 = 3, boolean = 4, i32 = 5 };  // as attune_dtype
enum class MaskKind : int32_t { none, boolean, f32, f16, bf16 };
enum class Alignment : int32_t { top_left = 1, bottom_right = 2 };  // as attune_alignment, settled

constexpr int kMaxHeadDim = 256;
constexpr int64_t kNoLimit = -1;

struct Problem {
  DType dtype = DType::f32;
  int64_t batch = 0;
  int64_t heads_q = 0, heads_kv = 0;
  int64_t seq_q = 0, seq_k = 0;  // the longest sequences when ragged
  int32_t dim = 0, dim_v = 0;
  bool causal = false;
  Alignment alignment = Alignment::top_left;
  int64_t window_left = kNoLimit, window_right = kNoLimit;
  MaskKind mask = MaskKind::none;
  int64_t block_mask_q = 0, block_mask_k = 0;  // 0: no block mask
  bool softcap = false;
  bool alibi = false;
  bool sinks = false;
  bool ragged = false;
  bool dropout = false;
  bool lse = false;
  bool batch_invariant = false;

  bool operator==(const Problem&) const = default;

  ATTUNE_HD constexpr int64_t group() const { return heads_q / heads_kv; }
};

}  // namespace attune
