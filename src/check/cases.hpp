// Correctness cases: one description of an attention call with generated inputs, and its verdict
// against the float64 reference. Shared by the tests, by `attune check` and by the optimiser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "src/cpu/config.hpp"
#include "src/cpu/pool.hpp"
#include "src/status.hpp"

namespace attune::check {

enum class Fill {
  normal,         // N(0,1)
  huge_logits,    // scores up to about 1e4
  vast_logits,    // scores beyond 2^31, exact in every dtype: the row maximum must be subtracted
                  // exactly
  tiny,           // about 1e-4: nearly uniform weights, fp16 subnormals
  one_hot_v,      // V rows are unit vectors: an output names the keys it came from
  peaked,         // one key dominates each row
  nan_in_masked,  // as normal, with NaN and Inf in K and V wherever no row may look
  nan_key         // one key of each sequence is NaN: rows that may look at it are NaN, no others
};

struct Case {
  Problem problem;
  std::vector<int32_t> lengths_q, lengths_k;  // ragged
  std::vector<int32_t> key_lengths;           // of each sequence, how many keys are used
  Fill fill = Fill::normal;
  float scale = 0;  // 0: 1/sqrt(D)
  float softcap = 0;
  float dropout_p = 0;
  int mask_broadcast = 0;      // bit d set: both masks have size 1 in dimension d
  float mask_density = 0.7f;   // of kept keys: boolean mask, block mask, infinite mask
  bool infinite_mask = false;  // an additive mask is -inf where a boolean one would be 0
  bool strided = false;    // outer strides that are not contiguous, pointers that are not aligned
  bool backwards = false;  // rows and heads of q, k, v and out, the last one first in memory
  bool repeated = false;   // one head of K and V serves all, one batch of Q: strides of 0
  uint64_t seed = 0;

  std::string name() const;  // readable and unique within a suite
};

struct Verdict {
  bool ok = false;
  double error = 0;  // largest |out - reference|
  double limit = 0;  // what was allowed
  double lse_error = 0, lse_limit = 0;
  attune_status status = ATTUNE_OK;  // of the call itself
  std::string why;                   // empty when ok
};

// What is under test: it fills params.out and params.lse.
using Forward = Status (*)(const Problem&, const Params&, const cpu::Executor&, const void* user);

// Fresh buffers, poisoned outputs with canaries around every buffer, inputs hashed before and
// after; the candidate runs before the reference does. Rule: error <= 2 x the error of the naive
// float32 loops on the same data + a few float32 roundings of the largest |V|.
Verdict run_case(const Case& c, const cpu::Executor& executor, Forward forward, const void* user);

// The library's own path through the C ABI (mode: attune_mode), and a given fused config.
Verdict run_case_api(const Case& c, int threads, attune_mode mode);
Verdict run_case_config(const Case& c, const cpu::Executor& executor, const cpu::CpuConfig& config);

// The same of the backward pass: the gradients of a case that the seed asks for, after a forward
// pass of the library. The rule: every element may be off by what the roundings of its terms can
// come to, and by the rounding of its dtype (docs/judge.md).
Verdict run_gradients_api(const Case& c, int threads, attune_mode mode);
Verdict run_gradients_config(const Case& c, const cpu::Executor& executor,
                             const cpu::CpuConfig& config);

enum class Suite { quick, full };
std::vector<Case> suite(Suite which, uint64_t seed);  // quick: about 300; full: at least 3,000

}  // namespace attune::check
