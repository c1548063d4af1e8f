// What is computed. Shared by host and device: no STL, no toolkit header. It is the key of
// selection and of the kernel cache.
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC brings no headers
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <stdint.h>
#endif

#ifdef __CUDACC__
#define ATTUNE_HD __host__ __device__
#else
#define ATTUNE_HD
#endif

namespace attune {

// As attune_dtype. No kernel but the CPU's reference takes f64.
enum class DType : int32_t { f32 = 1, f16 = 2, bf16 = 3, boolean = 4, i32 = 5, f64 = 6 };
enum class MaskKind : int32_t { none, boolean, f32, f16, bf16, f64 };
enum class Pass : int32_t { forward, backward };
enum class Alignment : int32_t { top_left = 1, bottom_right = 2 };  // as attune_alignment, settled

constexpr int kMaxHeadDim = 256;
constexpr int64_t kNoLimit = -1;

constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

struct Problem {
  Pass pass = Pass::forward;
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
  bool strict_fp32 = false;                  // fp32 stays off the tensor cores
  bool score_mod = false, mask_mod = false;  // the caller's code in the inner loop (CUDA)
  bool key_lengths = false;                  // of each sequence only the first keys are used

  bool operator==(const Problem&) const = default;

  ATTUNE_HD constexpr int64_t group() const { return heads_q / heads_kv; }
  // Whether a sequence may have fewer keys than seq_k.
  ATTUNE_HD constexpr bool keys_vary() const { return ragged || key_lengths; }
  ATTUNE_HD constexpr bool window() const {
    return window_left != kNoLimit || window_right != kNoLimit;
  }
};

}  // namespace attune
