// The backward pass of a case: its tensors, and its verdict.
#pragma once

#include <string>
#include <vector>

#include "src/check/data.hpp"
#include "src/cpu/pool.hpp"

namespace attune::check {

// What a backward call has beside the tensors of its forward call. Which gradients are asked for,
// and whether LSE has one, follows from the seed.
struct Gradients {
  explicit Gradients(const Data& data);

  // The forward call with results, as the backward call reads it.
  attune_args forward_args() const;
  attune_backward_args args(const attune_args* forward) const;
  Problem problem() const;
  Params params() const;
  GradParams grads() const;

  std::vector<const Tensor*> inputs() const { return {&out, &lse, &dout, &dlse}; }
  std::vector<const Tensor*> outputs() const { return {&dq, &dk, &dv, &dmask, &dsinks}; }

  const Data& data;
  Tensor out, lse, dout, dlse, dq, dk, dv, dmask, dsinks;

 private:
  void poison_dout();
};

// The gradients against the reference: each element may be off by as many roundings as its terms
// have, and by the rounding of its dtype. tensor_cores: they may have come from there.
Verdict compare(const Gradients& g, const cpu::Executor& executor, bool tensor_cores = false);

}  // namespace attune::check
