// Host side of the fused backward pass: how the work is cut into tasks, and who runs them.
#include "src/cpu/fused_backward.hpp"

#include "src/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/fused_backward.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "src/cpu/backward_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {

// fn.template operator()<mr, nv>() of the config's register tile.
template <size_t kTile = 0, class Fn>
void WithTile(const CpuConfig& config, const Fn& fn) {
  if constexpr (kTile < std::size(kTiles)) {
    constexpr Tile tile = kTiles[kTile];
    if constexpr (registers_of(tile) <= kRegisters) {
      if (tile == Tile{config.mr, config.nv}) return fn.template operator()<tile.mr, tile.nv>();
    }
    WithTile<kTile + 1>(config, fn);
  }
}

size_t StateBytes(const BackwardCall& call) { return BackwardScratch(call, 0, 0, nullptr).bytes; }

void FindStates(const BackwardCall& call, StateTask* task, void* scratch) {
  WithTile(call.forward.config,
           [&]<int kMr, int kNv>() { StateFinder<kMr, kNv>(call, task, scratch).Run(); });
}

size_t GradientBytes(const BackwardCall& call, const GradientTask& task) {
  return BackwardScratch(call, GradientRows(call, task), 0, nullptr).bytes;
}

void Gradients(const BackwardCall& call, const GradientTask& task, void* scratch) {
  WithTile(call.forward.config,
           [&]<int kMr, int kNv>() { GradientRunner<kMr, kNv>(call, task, scratch).Run(); });
}

size_t MaskBytes(const BackwardCall& call, const MaskTask& task) {
  return BackwardScratch(call, 0, TileSize(task), nullptr).bytes;
}

void Mask(const BackwardCall& call, const MaskTask& task, void* scratch) {
  WithTile(call.forward.config,
           [&]<int kMr, int kNv>() { MaskRunner<kMr, kNv>(call, task, scratch).Run(); });
}

int64_t DqFloats(const BackwardCall& call) { return WidthOf(call.forward.problem.dim); }
int64_t DkvFloats(const BackwardCall& call) {
  return WidthOf(call.forward.problem.dim) + WidthOf(call.forward.problem.dim_v);
}

const BackwardTable* Backward();
const BackwardTable* Backward() {
  static constexpr BackwardTable table{StateBytes, FindStates, GradientBytes, Gradients, MaskBytes,
                                       Mask,       Merge,      DqFloats,      DkvFloats};
  return &table;
}

}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "src/cpu/float_mode.hpp"
#include "src/cpu/reference.hpp"
#include "src/cpu/thread_scratch.hpp"

namespace attune::cpu {
namespace {

// What a thread keeps; more is given back after the task.
constexpr size_t kMostKept = size_t{8} << 20;

// Runs tasks with scratch memory, and remembers when there was none.
class Tasks {
 public:
  explicit Tasks(const Executor& executor) : executor_(executor) {}

  // fn(task, scratch of bytes_of(task)).
  template <class Task>
  void run(std::vector<Task>& tasks, const auto& bytes_of, const auto& fn) {
    if (out_of_memory_) return;
    executor_.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      Task& task = tasks[static_cast<size_t>(i)];
      const size_t bytes = bytes_of(task);
      void* own =
          bytes > kMostKept ? std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : nullptr;
      void* scratch = bytes > kMostKept ? own : thread_scratch(bytes);
      if (scratch == nullptr) {
        out_of_memory_ = true;
      } else {
        fn(task, scratch);
      }
      std::free(own);
    });
  }

  Status status() const {
    if (!out_of_memory_) return {};
    return {ATTUNE_OUT_OF_MEMORY,
            "no memory for a thread's scratch space; gradients are incomplete"};
  }

 private:
  const Executor& executor_;
  std::atomic<bool> out_of_memory_{false};
};

class Backward {
 public:
  Backward(const IsaTable& isa, const BackwardCall& call, const Executor& executor)
      : table_(*isa.backward()),
        call_(call),
        p_(call.forward.problem),
        a_(call.forward.params),
        c_(call.forward.config),
        g_(call.grads),
        executor_(executor),
        tasks_(executor) {}

  Status run() {
    find_states();
    if (g_.dq.data != nullptr || g_.dk.data != nullptr || g_.dv.data != nullptr) {
      if (Status status = gradients(); !status.ok()) return status;
    }
    if (g_.dmask.data != nullptr) mask();
    return tasks_.status();
  }

 private:
  Sequence sequence(int64_t b) const { return Sequence::of(p_, a_, b); }

  // The sequence's rows of K and V in memory, whether they are used or not.
  int64_t key_rows(int64_t b) const {
    Problem whole = p_;
    whole.key_lengths = false;
    return Sequence::of(whole, a_, b).sk;
  }

  void find_states() {
    std::vector<StateTask> tasks;
    for (int64_t h = 0; h < p_.heads_q; ++h)
      for (int64_t b = 0; b < p_.batch; ++b)
        for (int64_t row = 0, sq = sequence(b).sq; row < sq; row += c_.block_q)
          tasks.push_back({b, h, row, std::min<int64_t>(c_.block_q, sq - row), 0});
    tasks_.run(
        tasks, [&](const StateTask&) { return table_.state_bytes(call_); },
        [&](StateTask& task, void* scratch) { table_.find_states(call_, &task, scratch); });
    if (g_.dsinks == nullptr) return;
    // In order, and in the default floating-point mode.
    executor_.parallel_for(1, [&](int64_t) {
      auto task = tasks.begin();
      for (int64_t h = 0; h < p_.heads_q; ++h) {
        double sum = 0;
        for (; task != tasks.end() && task->head == h; ++task) sum += task->dsink;
        g_.dsinks[h * g_.dsinks_stride] = static_cast<float>(sum);
      }
    });
  }

  // Into how many parts the keys and the rows of each K/V head are cut, so that every thread has
  // work: keys first, since each has dK and dV of its own. Parts of dQ, or of dK and dV, take
  // memory and are merged.
  struct Parts {
    int64_t keys = 1, rows = 1;
  };
  Parts find_parts() const {
    const int64_t heads = p_.batch * p_.heads_kv, wanted = int64_t{2} * executor_.threads;
    Parts parts;
    if (p_.batch_invariant || executor_.threads == 1 || heads == 0 || heads >= wanted) return parts;
    const int64_t each = ceil_div(wanted, heads);
    parts.keys = std::clamp<int64_t>(each, 1, std::max<int64_t>(1, ceil_div(p_.seq_k, c_.block_k)));
    const int64_t blocks = RowBlocks::of(p_, c_, p_.seq_q).count();
    parts.rows = std::clamp<int64_t>(each / parts.keys, 1, std::max<int64_t>(1, blocks / 2));
    return parts;
  }

  Status gradients() {
    const Parts parts = find_parts();
    const bool dq_parts = parts.keys > 1 && g_.dq.data != nullptr;
    const bool dkv_parts = parts.rows > 1 && (g_.dk.data != nullptr || g_.dv.data != nullptr);
    const int64_t dq_size = dq_parts ? p_.group() * p_.seq_q * table_.dq_floats(call_) : 0;
    const int64_t dkv_size = dkv_parts ? p_.seq_k * table_.dkv_floats(call_) : 0;
    const int64_t of_head = parts.keys * dq_size + parts.rows * dkv_size;
    const size_t floats = static_cast<size_t>(of_head * p_.batch * p_.heads_kv);
    const std::unique_ptr<float[]> memory(floats > 0 ? new (std::nothrow) float[floats] : nullptr);
    if (floats > 0 && memory == nullptr)
      return {ATTUNE_OUT_OF_MEMORY, "no memory for the partial sums of gradients"};

    std::vector<GradientTask> tasks;
    std::vector<MergeTask> merges;
    float* at = memory.get();
    for (int64_t b = 0; b < p_.batch; ++b)
      for (int64_t kv = 0; kv < p_.heads_kv; ++kv, at += of_head) {
        float* dkv = at + parts.keys * dq_size;
        cut_head(b, kv, parts, dq_parts ? at : nullptr, dq_size, dkv_parts ? dkv : nullptr,
                 dkv_size, &tasks);
        const Sequence seq = sequence(b);
        if (dq_parts)
          cut_merge({b, kv, false, 0, p_.group() * seq.sq, at, parts.keys, dq_size}, &merges);
        if (dkv_parts) cut_merge({b, kv, true, 0, seq.sk, dkv, parts.rows, dkv_size}, &merges);
      }
    tasks_.run(
        tasks, [&](const GradientTask& task) { return table_.gradient_bytes(call_, task); },
        [&](const GradientTask& task, void* scratch) { table_.gradients(call_, task, scratch); });
    tasks_.run(
        merges, [](const MergeTask&) { return kMaxHeadDim * sizeof(float); },
        [&](const MergeTask& task, void* scratch) { table_.merge(call_, task, scratch); });
    return {};
  }

  void cut_head(int64_t b, int64_t kv, const Parts& parts, float* dq, int64_t dq_size, float* dkv,
                int64_t dkv_size, std::vector<GradientTask>* tasks) const {
    const Sequence seq = sequence(b);
    const int64_t row_blocks = RowBlocks::of(p_, c_, seq.sq).count();
    const int64_t key_blocks = ceil_div(seq.sk, c_.block_k);
    const int64_t unused_end = key_rows(b);
    for (int64_t k = 0; k < parts.keys; ++k)
      for (int64_t r = 0; r < parts.rows; ++r) {
        const int64_t end = std::min(seq.sk, key_blocks * (k + 1) / parts.keys * c_.block_k);
        const bool clears = r == 0 && k == parts.keys - 1;
        tasks->push_back({b, kv, row_blocks * r / parts.rows, row_blocks * (r + 1) / parts.rows,
                          key_blocks * k / parts.keys * c_.block_k, end, clears ? unused_end : end,
                          dq != nullptr ? dq + k * dq_size : nullptr,
                          dkv != nullptr ? dkv + r * dkv_size : nullptr});
      }
  }

  // Some hundred rows a task.
  static void cut_merge(MergeTask whole, std::vector<MergeTask>* merges) {
    constexpr int64_t kRows = 256;
    const int64_t end = whole.end;
    for (int64_t row = 0; row < end; row += kRows) {
      whole.begin = row;
      whole.end = std::min(end, row + kRows);
      merges->push_back(whole);
    }
  }

  void mask() {
    const int64_t* shape = g_.dmask_shape;
    std::vector<MaskTask> tasks;
    for (int64_t b = 0; b < shape[0]; ++b)
      for (int64_t h = 0; h < shape[1]; ++h)
        for (int64_t i = 0; i < shape[2]; i += c_.block_q)
          for (int64_t j = 0; j < shape[3]; j += c_.block_k)
            tasks.push_back({b, h, i, std::min(shape[2], i + c_.block_q), j,
                             std::min(shape[3], j + c_.block_k)});
    tasks_.run(
        tasks, [&](const MaskTask& task) { return table_.mask_bytes(call_, task); },
        [&](const MaskTask& task, void* scratch) { table_.mask(call_, task, scratch); });
  }

  const BackwardTable& table_;
  const BackwardCall& call_;
  const Problem& p_;
  const Params& a_;
  const CpuConfig& c_;
  const GradParams& g_;
  const Executor& executor_;
  Tasks tasks_;
};

}  // namespace

Status fused_backward(const IsaTable& table, const Problem& problem, const Params& params,
                      const GradParams& grads, const CpuConfig& config, const Executor& executor) {
  if (problem.seq_q == 0 || problem.seq_k == 0) {
    // No scores. The reference writes what there is, and walks nothing else.
    const DefaultFloatMode mode;
    reference_backward(problem, params, grads, executor);
    return {};
  }
  const size_t rows = static_cast<size_t>(problem.batch * problem.heads_q * problem.seq_q);
  const std::unique_ptr<RowState[]> states(new (std::nothrow) RowState[rows]);
  if (states == nullptr) return {ATTUNE_OUT_OF_MEMORY, "no memory for the states of rows"};
  const BackwardCall call{{problem, params, config}, grads, states.get()};
  return Backward(table, call, executor).run();
}

}  // namespace attune::cpu
#endif  // HWY_ONCE
