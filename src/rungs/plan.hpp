// What selection hands over: what is compiled, and how it is launched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/arch.h"
#include "kernels/params.h"
#include "src/rungs/config.hpp"

namespace attune {

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

// What a translation unit is made of, beside its constants.
struct Entry {
  const char* name;      // of the kernel
  const char* function;  // the template that it calls
  const char* bounds;    // of its launch
  bool maps = false;     // it takes tensor maps too
};
// A wgmma instruction: of n columns; `turned`: its second operand lies by columns.
struct Product {
  int n;
  DType operand;
  bool turned;
};
struct Unit {
  std::vector<const char*> headers;
  std::vector<Entry> entries;
  std::vector<Product> products = {};  // the emitter writes a wrapper for each
};

}  // namespace attune
