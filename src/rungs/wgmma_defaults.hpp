// The rows that Hopper's rung takes its defaults from.
#pragma once

#include <span>
#include <vector>

#include "src/rungs/defaults.hpp"
#include "src/rungs/wgmma.hpp"

namespace attune {

// The kinds of calls that have a table each.
enum class WgmmaCalls {
  packed_heads,  // few queries of heads that share keys
  block_mask,    // and no other feature
  few_tiles,     // plain scores, and a block for each tile
  plain,         // scores that are products, whatever the limits on the keys
  mask,          // beside K, by TMA
  by_element,    // all others; and where a row of another table is invalid
  fp32_plain,
  fp32_by_element
};
struct WgmmaDefaults {
  const char* name;
  std::span<const DefaultRow<WgmmaChoice>> rows;
};
std::span<const WgmmaDefaults> wgmma_defaults();  // by WgmmaCalls

// The config that follows from the rows for a call, and calls that go through all of them.
WgmmaChoice wgmma_standard(const Request& r);
std::vector<DefaultCall> wgmma_default_calls(const Arch& arch);
bool wgmma_packs_heads(const Problem& p);

}  // namespace attune
