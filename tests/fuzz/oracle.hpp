// Attention in float64, written for the fuzzer from the definition in attune.h. It shares nothing
// with the library but the random bits of dropout, which have tests of their own.
#pragma once

#include "tests/fuzz/call.hpp"

namespace attune::fuzz {

struct Expected {
  double value = 0;
  double limit = 0;  // how far a result may be from it, before it is rounded to its dtype
};

// One element of an output: where it lies, and what should be there.
struct ExpectedElement {
  int name;
  int64_t at;
  Expected expected;
};

// The call was accepted, its memory is there and it is small. Elements that no row reaches are not
// listed.
std::vector<ExpectedElement> expected_forward(const Case& c);
// Gradients that are given. The data must be finite.
std::vector<ExpectedElement> expected_backward(const Case& c);

}  // namespace attune::fuzz
