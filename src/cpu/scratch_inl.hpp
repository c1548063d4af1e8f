// The memory of one task of the fused kernel.
#if defined(ATTUNE_SRC_CPU_SCRATCH_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_SCRATCH_INL_HPP_
#undef ATTUNE_SRC_CPU_SCRATCH_INL_HPP_
#else
#define ATTUNE_SRC_CPU_SCRATCH_INL_HPP_
#endif

#include "src/cpu/fused_task.hpp"
#include "src/cpu/softmax_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

constexpr int64_t RoundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// After so many blocks of keys the sums are folded into doubles: a sum of floats is as wrong as it
// is long.
constexpr int64_t kFoldBlocks = 64;
HWY_INLINE bool IsFolded(const FusedCall& call) {
  return call.problem.seq_k > kFoldBlocks * call.config.block_k;
}

// A row group's keys within the current block.
struct Group {
  int begin, end;  // the union over its rows; empty when begin >= end
  bool partial;    // some of these keys are not allowed to some row
};

// Which of keys [key0, key0 + keys) a group of rows looks at.
inline Group FindKeys(const FusedCall& call, int64_t b, const Row* rows, int count, int64_t key0,
                      int keys) {
  const Problem& p = call.problem;
  int64_t low = key0 + keys, high = key0;
  bool partial = p.mask != MaskKind::none || p.block_mask_q != 0 || p.dropout;
  for (int r = 0; r < count; ++r) {
    const int64_t begin = std::max(rows[r].begin, key0);
    const int64_t end = std::min(rows[r].end, key0 + keys);
    partial |= begin > key0 || end < key0 + keys;
    if (begin >= end) continue;
    low = std::min(low, begin);
    high = std::max(high, end);
  }
  const Group group{static_cast<int>(low - key0), static_cast<int>(high - key0), partial};
  if (low < high && AllMasked(call, b, rows, count, key0, group.begin, group.end)) {
    return {0, 0, true};
  }
  return group;
}

// The scratch of one task. Rows are padded to whole row groups, so that the micro-kernels need no
// row tail.
struct Scratch {
  float* q;        // packed [group][dim][mr], or [row][dim padded] for the dot path
  float* k;        // packed panels
  float* v;        // packed panels
  float* out;      // accumulators [row][dim_v padded]
  float* sums;     // [row][lane]: the row sum, one part a lane
  float* scores;   // [row][kScoreStride]
  double* folded;  // [row][dim_v padded, then the row sum]: blocks before the current ones
  Row* rows;
  Group* groups;
  size_t bytes;

  Scratch(const FusedCall& call, int64_t row_count, void* memory) {
    const int64_t padded = RoundUp(row_count, call.config.mr);
    const int64_t width = RoundUp(call.problem.dim_v, kLanes);
    const int64_t panel = int64_t{call.config.nv} * kLanes;
    char* at = static_cast<char*>(memory);
    const auto take = [&at](int64_t count, size_t size) {
      char* p = at;
      at += RoundUp(count * static_cast<int64_t>(size), 64);
      return p;
    };
    q = reinterpret_cast<float*>(take(padded * RoundUp(call.problem.dim, kLanes), sizeof(float)));
    k = reinterpret_cast<float*>(
        take(RoundUp(call.config.block_k, panel) * call.problem.dim, sizeof(float)));
    v = reinterpret_cast<float*>(
        take(RoundUp(call.problem.dim_v, panel) * call.config.block_k, sizeof(float)));
    out = reinterpret_cast<float*>(take(padded * width, sizeof(float)));
    sums = reinterpret_cast<float*>(take(padded * kLanes, sizeof(float)));
    scores = reinterpret_cast<float*>(take(padded * kScoreStride, sizeof(float)));
    folded =
        reinterpret_cast<double*>(take(IsFolded(call) ? padded * (width + 1) : 0, sizeof(double)));
    rows = reinterpret_cast<Row*>(take(padded, sizeof(Row)));
    groups = reinterpret_cast<Group*>(take(padded / call.config.mr, sizeof(Group)));
    bytes = static_cast<size_t>(at - static_cast<char*>(memory));
  }
};

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
