// What is compiled, and how it is launched: the hand-over from selection to the run-time compiler.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "kernels/config.h"
#include "kernels/params.h"

namespace attune::jit {

using Config = std::variant<LadderConfig, MmaConfig, WgmmaConfig>;

// One translation unit. Two equal specs are one kernel.
struct KernelSpec {
  Problem key;  // kernel_key() of a problem
  Config config;
  std::string score_mod, mask_mod;  // bodies of the caller's code; empty: none
  Arch arch;

  bool operator==(const KernelSpec&) const = default;
};

struct Launch {
  const char* entry;   // the kernel's name in the translation unit
  uint32_t grid = 1;   // blocks
  uint32_t block = 1;  // threads
  uint32_t smem = 0;   // dynamic shared memory, bytes
  bool early =
      false;          // may begin before the launch before it ends: it waits by itself (9.0 and up)
  bool maps = false;  // takes TensorMaps beside its arguments
  uint32_t cluster = 1;  // blocks that run side by side and reach each other's shared memory (9.0)
};

// All of one forward call: the launches run in order on one stream.
struct Plan {
  std::string id;  // "sm90.attn_fwd.bf16.d128.causal/mma.wq4...."
  KernelSpec spec;
  std::vector<Launch> launches;
  int32_t splits = 1;
  BlockDivisors divisors;
  size_t workspace_bytes = 0;  // needed; the launches lay it out by themselves
  uint32_t tiles = 0;          // Params::tiles
  uint32_t box_k = 0;          // keys that a tensor map of K and V brings at once; 0: no maps
  uint32_t mask_box = 0;       // keys that one of the mask brings; 0: there is none
  bool packed = false;         // the boxes of Q and O hold all heads of a group
  bool counter = false;        // the workspace begins with a number that must be 0
};

}  // namespace attune::jit
