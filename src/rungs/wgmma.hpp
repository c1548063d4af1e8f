// The config of Hopper's rung as the host has it.
#pragma once

#include "kernels/sm90/config.h"
#include "src/rungs/typed.hpp"

namespace attune {

// What its kernels are compiled for, and what only the plan reads.
struct WgmmaChoice : WgmmaConfig {
  int group_mb = 16;  // of K and V whose heads run together, so that they stay in the L2

  bool operator==(const WgmmaChoice&) const = default;
};

}  // namespace attune
