// Host side of the fused kernel: which instruction set, how the work is cut into tasks, who runs
// them.
#include "src/cpu/fused.hpp"

#include "src/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/fused.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include "src/cpu/table_inl.hpp"

#if HWY_ONCE

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "src/cpu/thread_scratch.hpp"

namespace attune::cpu {
namespace {

HWY_EXPORT(Table);

// The table in use. Chosen when the library is loaded: a static local would leave a forked child
// waiting for ever when another thread of the parent was just in here for the first time.
std::atomic<const IsaTable*> g_table{nullptr};
std::atomic<int64_t> g_target{0};

void use_target(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);  // 0: whatever the processor has
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  g_table = HWY_DYNAMIC_DISPATCH(Table)();
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  g_target = usable & -usable;  // Highway's best target is the lowest bit
  hwy::SetSupportedTargetsForTest(0);
}

// Every instruction set that runs here, by its bit. Filled when the library is loaded.
struct Isa {
  int64_t target;
  const IsaTable* table;
};
constinit Isa g_isas[64] = {};
constinit size_t g_isa_count = 0;

[[gnu::constructor]] void choose_isa() {
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    use_target(left & -left);
    g_isas[g_isa_count++] = {left & -left, g_table};
  }
  const char* wish = secure_getenv("ATTUNE_ISA");  // debugging
  if (wish == nullptr || !force_isa(wish)) use_target(0);
}

const IsaTable& isa() { return *g_table.load(std::memory_order_acquire); }

// How the rows of one sequence become tasks: several whole heads of a group together while they are
// short, since they share K and V; else blocks of rows of one head.
struct RowPlan {
  int64_t heads, rows;

  static RowPlan of(const Problem& p, const CpuConfig& c, int64_t sq) {
    if (sq <= c.block_q / 2) return {std::clamp<int64_t>(c.block_q / sq, 1, p.group()), sq};
    const int64_t blocks = (sq + c.block_q - 1) / c.block_q;
    const int64_t even = (sq + blocks - 1) / blocks;
    return {1, std::min(sq, (even + c.mr - 1) / c.mr * c.mr)};
  }
};

// All tasks of a call but for splits. Long rows first within a head: what is left for the end is
// short, so threads finish together.
std::vector<Task> cut_rows(const Problem& p, const Params& a, const CpuConfig& c) {
  std::vector<Task> tasks;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = Sequence::of(p, a, b);
    if (seq.sq == 0) continue;
    const RowPlan plan = RowPlan::of(p, c, seq.sq);
    // By the sequence and not by the task, or a row's bits would depend on how rows were cut.
    const bool few_rows = plan.rows == seq.sq && plan.heads * plan.rows <= c.dot_rows;
    for (int64_t kv = 0; kv < p.heads_kv; ++kv) {
      for (int64_t h = 0; h < p.group(); h += plan.heads) {
        for (int64_t row = (seq.sq - 1) / plan.rows * plan.rows; row >= 0; row -= plan.rows) {
          tasks.push_back({b, kv, kv * p.group() + h, std::min(plan.heads, p.group() - h), row,
                           std::min(plan.rows, seq.sq - row), 0, seq.sk, few_rows, nullptr});
        }
      }
    }
  }
  return tasks;
}

// Parts of the key range, so that every thread has work when there are fewer tasks than threads. A
// sequence whose bits must not depend on its neighbours is cut by its own length alone.
int split_count(const Problem& p, const CpuConfig& c, size_t tasks, int threads) {
  const int64_t blocks = (p.seq_k + c.block_k - 1) / c.block_k;
  const int64_t most = std::max<int64_t>(
      1, blocks / 4);  // a part below four blocks costs more to combine than it brings
  if (c.splits > 0)
    return static_cast<int>(std::min<int64_t>(c.splits, std::max<int64_t>(1, blocks)));
  if (p.batch_invariant || tasks == 0 || tasks >= static_cast<size_t>(threads)) return 1;
  return static_cast<int>(std::min<int64_t>(
      most, (threads + static_cast<int64_t>(tasks) - 1) / static_cast<int64_t>(tasks)));
}

}  // namespace

Status fused_forward(const Problem& problem, const Params& params, const CpuConfig& config,
                     const Executor& executor) {
  return fused_forward(isa(), problem, params, config, executor);
}

Status fused_forward(const IsaTable& table, const Problem& problem, const Params& params,
                     const CpuConfig& config, const Executor& executor) {
  const FusedCall call{problem, params, config};
  std::atomic<bool> out_of_memory{false};
  const auto run = [&](const Task& task) {
    void* scratch = thread_scratch(table.scratch_bytes(call, task.total_rows()));
    if (scratch == nullptr) {
      out_of_memory = true;
    } else {
      table.run(call, task, scratch);
    }
  };

  const std::vector<Task> tasks = cut_rows(problem, params, config);
  const int splits = split_count(problem, config, tasks.size(), executor.threads);
  if (splits == 1) {
    executor.parallel_for(static_cast<int64_t>(tasks.size()),
                          [&](int64_t i) { run(tasks[static_cast<size_t>(i)]); });
  } else {
    size_t floats = 0;
    for (const Task& t : tasks)
      floats += table.partial_floats(call, t.total_rows()) * static_cast<size_t>(splits);
    const std::unique_ptr<float[]> partial(new (std::nothrow) float[floats]);
    if (partial == nullptr)
      return {ATTUNE_OUT_OF_MEMORY, "no memory for the partial results of split keys"};
    std::vector<Task> parts;
    parts.reserve(tasks.size() * static_cast<size_t>(splits));
    float* at = partial.get();
    for (Task t : tasks) {
      const int64_t keys = t.key_end;
      const int64_t blocks = (keys + config.block_k - 1) / config.block_k;
      for (int s = 0; s < splits; ++s, at += table.partial_floats(call, t.total_rows())) {
        t.key_begin = blocks * s / splits * config.block_k;
        t.key_end = std::min(keys, blocks * (s + 1) / splits * config.block_k);
        t.partial = at;
        parts.push_back(t);
      }
    }
    executor.parallel_for(static_cast<int64_t>(parts.size()),
                          [&](int64_t i) { run(parts[static_cast<size_t>(i)]); });
    executor.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
      void* scratch = thread_scratch(table.partial_floats(call, 1) * sizeof(float));
      if (scratch == nullptr || out_of_memory) {
        out_of_memory = true;
      } else {
        table.combine(call, &parts[static_cast<size_t>(i * splits)], splits, scratch);
      }
    });
  }
  if (out_of_memory)
    return {ATTUNE_OUT_OF_MEMORY, "no memory for a thread's scratch space; outputs are incomplete"};
  return {};
}

std::string isa_name() { return hwy::TargetName(g_target); }

CpuArch arch() { return isa().arch; }

const IsaTable* isa_table() { return &isa(); }

const IsaTable* isa_table(const std::string& name) {
  for (size_t n = 0; n < g_isa_count; ++n)
    if (name == hwy::TargetName(g_isas[n].target)) return g_isas[n].table;
  return nullptr;
}

std::string isa_name(const IsaTable* table) {
  for (size_t n = 0; n < g_isa_count; ++n)
    if (g_isas[n].table == table) return hwy::TargetName(g_isas[n].target);
  return "";
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    names.emplace_back(hwy::TargetName(left & -left));
  }
  return names;
}

bool force_isa(const std::string& name) {
  if (name.empty()) {
    use_target(0);
    return true;
  }
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    if (name == hwy::TargetName(left & -left)) {
      use_target(left & -left);
      return true;
    }
  }
  return false;
}

double measure_peak_flops(double seconds) { return isa().peak_flops(seconds); }

}  // namespace attune::cpu
#endif  // HWY_ONCE
