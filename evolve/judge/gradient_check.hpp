// A call's gradients against float64, and as a whole against the library's own kernel.
#pragma once

#include <string>
#include <vector>

#include "evolve/judge/row_check.hpp"
#include "evolve/propose/dice.hpp"
#include "kernels/params.h"
#include "src/cpu/pool.hpp"

namespace attune::evolve {

class GradientCheck {
 public:
  // What grads.dq, dk and dv hold is compared with what the inputs give. For problems without
  // features beyond those of candidate.h; the memory must stay. `hard`: scores are large.
  GradientCheck(const Problem& problem, const Params& params, const GradParams& grads, bool hard);

  // Random rows of dq against float64, by the rule of src/check/gradients.hpp.
  Fault rows(int count, Dice* dice) const;

  // The same, and all three against the library's kernel. A head that is farther from it than two
  // kernels may be is compared with float64 too: the decision is always by that. Of a first look
  // (`count` of kFirstLook or more) one head is, where that does not take long.
  Fault whole(int count, const cpu::Executor& executor, Dice* dice) const;

  static constexpr int kFirstLook = 8;

 private:
  // Query heads of one key head, in one batch.
  struct Head {
    int64_t b, h;
    double off = 0;  // from the library's, in what two kernels may differ by
  };
  struct Tensor;
  std::vector<Tensor> tensors() const;
  Fault row(int64_t b, int64_t h, int64_t i) const;
  Fault head(const Head& which, const cpu::Executor& executor) const;
  std::vector<Head> heads(const GradParams& own) const;
  double distance(const Tensor& mine, const Tensor& its, const Head& head) const;

  const Problem& p_;
  const Params& a_;
  const GradParams& g_;
  bool hard_;
};

}  // namespace attune::evolve
