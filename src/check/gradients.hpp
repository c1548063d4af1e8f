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

  // Beside those of the forward call; some of them may not be given.
  std::vector<const Tensor*> inputs() const { return {&out, &lse, &dout, &dlse}; }
  std::vector<const Tensor*> outputs() const { return {&dq, &dk, &dv, &dmask, &dsinks}; }
  std::vector<uint64_t> hashes_of_inputs() const;
  // What was touched that must not be, beside the forward call's inputs; empty when nothing.
  std::string damage(const std::vector<uint64_t>& hashes_before) const;

  const Data& data;
  Tensor out, lse, dout, dlse, dq, dk, dv, dmask, dsinks;

 private:
  void poison_dout();
};

// The rule: an element may be off by as many roundings as its terms have, and by the rounding of
// its dtype.
double allowed_of_gradient(double reference, double roundings, int32_t dtype);
// Whether it is within that. Beyond the numbers of its dtype it may be infinite.
bool is_right_gradient(double got, double reference, double allowed, int32_t dtype);

// Every element against the reference. tensor_cores: they may have come from there.
Verdict compare(const Gradients& g, const cpu::Executor& executor, bool tensor_cores = false);

}  // namespace attune::check
