// Named sets of shapes, so that everyone measures the same ones.
#pragma once

#include <string>
#include <vector>

#include "cli/ranges.hpp"
#include "kernels/problem.h"

namespace attune::cli {

// What is computed, before the question of how.
struct Work {
  std::string set;  // empty: the command line's own
  Shape shape;
  DType dtype = DType::f32;
  bool causal = false;
  bool lse = false;
};

struct NamedSet {
  std::string name, about;
};
std::vector<NamedSet> named_sets();  // of cli/sets.json, which bench/ reads too

// The rows of a set, by its name or its old name; empty when there is no such set.
std::vector<Work> set_rows(const std::string& name);

// The longest sequence for which a set has rows of the rungs that take time and memory without
// end: naive and tiled.
inline constexpr int64_t kLongestQuadratic = 16384;

}  // namespace attune::cli
