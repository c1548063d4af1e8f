// What selection hands over: what is compiled, and how it is launched.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/arch.h"
#include "src/cuda/launch.hpp"
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

// All of one call.
struct Plan : cuda::Steps {
  std::string id;                 // "sm90.attn_fwd.bf16.d128.causal/mma.wq4...."
  std::vector<KernelSpec> units;  // what the launches are of; the first one has the call's config
  size_t workspace_bytes = 0;     // needed; the launches lay it out by themselves

  const Config& config() const { return units.front().config; }
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
