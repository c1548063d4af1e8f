// A call's result against float64, row by row, and as a whole against the library's own kernel.
#pragma once

#include <string>
#include <vector>

#include "evolve/propose/dice.hpp"
#include "kernels/params.h"
#include "src/check/judge.hpp"
#include "src/cpu/pool.hpp"

namespace attune::evolve {

struct Fault {
  bool cheated = false;  // canaries or inputs; else the result is wrong
  std::string why;       // empty: nothing is wrong
};

class RowCheck {
 public:
  // What params.out and params.lse hold is compared with what its inputs give. For problems without
  // features beyond those of candidate.h; the memory must stay.
  RowCheck(const Problem& problem, const Params& params, const check::Allowance& allow,
           check::Fill fill = check::Fill::normal);

  // Single rows against float64. The limit is the judge's rule (src/check/judge.cpp) with the error
  // of the naive loops on these rows only, hence a little wider.
  struct Place {
    int64_t b, h, i;
  };
  Fault rows(const std::vector<Place>& places) const;

  // `count` random rows and the last row of a head, as above; then every element against the
  // library's kernel. A row that is farther from it than the limit is compared with float64 too:
  // the decision is always by that.
  Fault whole(int count, const cpu::Executor& executor, Dice* dice) const;

  Place draw(Dice* dice) const;

 private:
  struct Row;
  struct Limits;
  Row measure(const Place& at) const;
  Limits limits(const std::vector<Row>& rows) const;
  Fault judge(const Row& row, const Limits& limits) const;
  float value(const void* data, int64_t at) const;

  const Problem& p_;
  const Params& a_;
  check::Allowance allow_;
  bool huge_;
};

}  // namespace attune::evolve
