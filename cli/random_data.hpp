// What measured calls compute on: N(0,1), the same on every device for a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/problem.h"

namespace attune::cli {

// An odd number of N(0,1) values, so that repetitions do not line up with rows; for booleans seven
// keys in ten are kept.
std::vector<std::byte> random_pattern(DType dtype, uint64_t seed);

DType mask_dtype(MaskKind kind);

}  // namespace attune::cli
