// The calls whose kernels ship: what the compile-all test and `attune cache warm` go through.
#pragma once

#include <span>
#include <vector>

#include "src/rungs/rung.hpp"

namespace attune {

Problem sample_problem(DType dtype, int dim);
// As if the caller's tensors were contiguous, or a few bytes off.
Request sample_request(const Problem& problem, const Arch& arch, bool aligned);
// What every rung ships kernels for, and every feature once.
std::vector<Request> common_samples(const Arch& arch);
std::vector<Request> feature_samples(DType dtype, const Arch& arch);
// The same of the backward pass, with every gradient that a call can ask for.
std::vector<Request> backward_samples(const Arch& arch);

// What limits the keys of a row, with what costs registers beside it.
using Limit = void (*)(Problem*);
std::span<const Limit> limit_samples();

}  // namespace attune
