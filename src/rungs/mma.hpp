// What the two tensor-core rungs share.
#pragma once

#include <vector>

#include "kernels/sm80/config.h"
#include "src/rungs/defaults.hpp"
#include "src/rungs/typed.hpp"

namespace attune {

// How block numbers become tiles (kernels/params.h): `group_bytes` of K and V run together.
BlockDivisors block_divisors(const Problem& problem, int block_q, bool packed, int splits,
                             int64_t group_bytes);

}  // namespace attune
