// Each rung's object, for the list in registry.cpp.
#pragma once

#include "src/rungs/rung.hpp"

namespace attune {

const Rung& naive_rung();
const Rung& tiled_rung();
const Rung& fused_rung();
const Rung& mma_rung();
const Rung& wgmma_rung();

const Rung& fused_backward_rung();
const Rung& mma_backward_rung();

}  // namespace attune
