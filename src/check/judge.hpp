// The verdict on a result: how far it is from the float64 reference, and what it touched.
#pragma once

#include <string>
#include <vector>

#include "src/check/data.hpp"
#include "src/cpu/pool.hpp"

namespace attune::check {

// The reference's result, its conditioning, and the naive loops' result on the same data.
struct Expected {
  std::vector<double> out, lse, sensitivity, term_sensitivity, lse_sensitivity;
  Tensor naive_out, naive_lse;
};

Expected expect(const Data& data, const cpu::Executor& executor);

// What a candidate's arithmetic is allowed beyond plain float32's.
struct Allowance {
  double weights = 0;  // the relative error of each softmax weight before the product with V
  double score_roundings = 0;  // float32 roundings of a score
};

// data.out and data.lse against the reference.
Verdict compare(const Data& data, const Expected& expected, const Allowance& allow = {});

const char* input_name(size_t n);  // in the order of Data::inputs()

std::vector<uint64_t> hashes_of_inputs(const Data& data);

// What the candidate touched that it must not; empty when nothing.
std::string damage(const Data& data, const std::vector<uint64_t>& hashes_before);
std::string damage_around_outputs(const Data& data);

}  // namespace attune::check
