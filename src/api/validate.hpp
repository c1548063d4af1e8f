// From the caller's arguments to Problem and Params, or to the reason why not.
#pragma once

#include "kernels/params.h"
#include "src/cpu/pool.hpp"
#include "src/status.hpp"

namespace attune {

struct Call {
  Problem problem;
  Params params;
  cpu::Executor executor;
  attune_mode mode = ATTUNE_AUTO;
  bool empty = false;  // no output element: nothing to do
};

enum class Pointers { required, optional };  // optional: shapes alone are enough (explain)

// Checks every argument before any work. Copies the struct by its struct_size, so that older and
// newer callers are both served.
Status make_call(const attune_args* args, Pointers pointers, Call* call);
Status make_backward_call(const attune_backward_args* args, Call* call, GradParams* grads);

}  // namespace attune
