// One instruction set's entry points, with every prebuilt register tile.
#if defined(ATTUNE_SRC_CPU_TABLE_INL_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTUNE_SRC_CPU_TABLE_INL_HPP_
#undef ATTUNE_SRC_CPU_TABLE_INL_HPP_
#else
#define ATTUNE_SRC_CPU_TABLE_INL_HPP_
#endif

#include "src/cpu/fused_inl.hpp"
#include "src/cpu/peak_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

template <class T, size_t kTile = 0>
void RunTile(const FusedCall& call, const Task& task, void* scratch) {
  if constexpr (kTile < std::size(kTiles)) {
    constexpr Tile tile = kTiles[kTile];
    if constexpr (registers_of(tile) <= kRegisters) {
      static_assert(RoundUp(kMaxBlockK, tile.nv * kLanes) <= kScoreStride);  // for any block_k
      if (tile == Tile{call.config.mr, call.config.nv})
        return TaskRunner<T, tile.mr, tile.nv>(call, task, scratch).Run();
    }
    RunTile<T, kTile + 1>(call, task, scratch);
  }
}

void Run(const FusedCall& call, const Task& task, void* scratch) {
  switch (call.problem.dtype) {
    case DType::f16:
      return RunTile<F16>(call, task, scratch);
    case DType::bf16:
      return RunTile<BF16>(call, task, scratch);
    default:
      return RunTile<float>(call, task, scratch);
  }
}

void Combine(const FusedCall& call, const Task* tasks, int splits, void* scratch) {
  float* row = static_cast<float*>(scratch);
  switch (call.problem.dtype) {
    case DType::f16:
      return CombineRows<F16>(call, tasks, splits, row);
    case DType::bf16:
      return CombineRows<BF16>(call, tasks, splits, row);
    default:
      return CombineRows<float>(call, tasks, splits, row);
  }
}

const BackwardTable* Backward();  // src/cpu/fused_backward.cpp

const IsaTable* Table() {
  static constexpr IsaTable table{{kLanes, kRegisters}, ScratchBytes, Run,     Combine,
                                  PartialFloats,        PeakFlops,    Backward};
  return &table;
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // include guard
