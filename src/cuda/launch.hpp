// What one call enqueues on a stream, as data, and how it is enqueued.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "src/cuda/driver.hpp"
#include "src/status.hpp"

namespace attune::cuda {

// Bytes of the workspace that are 0 before the first launch.
struct Clear {
  size_t offset = 0, bytes = 0;  // multiples of 4

  bool operator==(const Clear&) const = default;
};

enum class Operand { q, k, v, out, mask };  // a tensor of the call

// A tensor map: a tensor, and the box of it that one copy by TMA brings.
struct Map {
  enum class Order {
    rows,    // [b][h][s][d]: `rows` rows of one head
    packed,  // [b][hk][s][h][d]: so many rows are a few queries of all heads of a group
    mask     // [b][h][i][j]: `rows` query rows, or one where the mask repeats along them
  };
  Operand tensor = Operand::q;
  Order order = Order::rows;
  uint32_t columns = 0, rows = 0;  // of the box, in elements

  bool operator==(const Map&) const = default;
};

struct Launch {
  const char* entry;   // the kernel's name in its translation unit
  uint32_t grid = 1;   // blocks
  uint32_t block = 1;  // threads
  uint32_t smem = 0;   // dynamic shared memory, bytes
  bool early = false;  // may begin before the launch before it ends: it waits by itself (9.0 on)
  bool maps = false;   // takes the tensor maps beside its arguments
  size_t unit = 0;     // which of the call's translation units has the kernel
};

// In this order, on one stream.
struct Steps {
  std::vector<Clear> clears;
  std::vector<Map> maps;  // the kernels' TensorMaps, in the order of its members
  std::vector<Launch> launches;
  Blocks blocks;
};

struct Function {
  const char* name = nullptr;  // of the entry
  CUfunction handle = nullptr;
  mutable std::atomic<uint32_t> smem{48 << 10};  // dynamic shared memory that it may have
};

// A compiled translation unit in one context, unloaded with it.
class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  // Into the current context; `what` names it in errors.
  Status load(const std::string& cubin, std::span<const char* const> entries,
              const std::string& what);
  const Function* find(const char* entry) const;

 private:
  CUmodule handle_ = nullptr;
  std::vector<Function> functions_;
};

// Clears, then launches, on the stream of the current context. modules[i] is unit i. `grads` is
// looked at in a backward pass, whose kernels take GradientArgs. `what` names the call in errors.
Status enqueue(const Steps& steps, std::span<const Module* const> modules, const Problem& problem,
               const Params& params, const GradParams& grads, CUstream stream,
               const std::string& what);

}  // namespace attune::cuda
