// The same cases and the same judge on a CUDA device.
#pragma once

#include <string>
#include <vector>

#include "src/check/cases.hpp"
#include "src/check/judge.hpp"

namespace attune::check {

struct CudaOptions {
  // Causal limit, window, ALiBi, softcap and boolean mask become the caller's own code, where the
  // definition of a score lets them; the reference still computes the features themselves.
  bool as_user_code = false;
  bool repeat = false;        // a second run must give the same bits
  bool strict_fp32 = false;   // fp32 stays on CUDA cores
  bool no_workspace = false;  // a rung that cannot do without is refused: Verdict::status says so

  // Statements before the score modifier's own, to test the judge: `words` has the addresses of
  // UserWord.
  std::string sabotage;
};

// What the caller's code finds behind its data pointer, 64 bits each.
enum UserWord {
  kSlopes,
  kSlopesStrideB,
  kSlopesStrideH,
  kMask,
  kMaskStride,  // four of them
  kCuQ = kMaskStride + 4,
  kCuK,
  kKeyLengths,
  kOut,
  kQ,
  kWorkspace,
  kUserWords
};

// One verdict a mode, all against one run of the reference: it is what takes long. Each tensor's
// whole memory, canaries and gaps included, is copied to the device and back; outputs and workspace
// are poisoned before each run. Safe from many threads: they compile and compute references at
// once, and take turns on the device.
std::vector<Verdict> run_case_cuda(const Case& c, const std::vector<attune_mode>& modes,
                                   const CudaOptions& options);
Verdict run_case_cuda(const Case& c, attune_mode mode, const CudaOptions& options);

// The same of the backward pass: `as_user_code` and `sabotage` are the forward pass's alone. Each
// reads the CPU's results of the forward pass, so that a verdict is about the gradients.
std::vector<Verdict> run_gradients_cuda(const Case& c, const std::vector<attune_mode>& modes,
                                        const CudaOptions& options);

// What tensor cores do to a result, beyond plain float32. They take both operands of the second
// product in the inputs' dtype, so that the weights of a 16-bit problem are rounded to its 8 (bf16)
// or 11 (fp16) significant bits; and the result once more, which the naive loops' own error shows
// only where the exact result is not a 16-bit number by itself. They cut off where float32 rounds,
// twice for every 16 terms of a product (the terms' sum, and its sum with what was there), each
// time up to two roundings. Every peer does all of this. fp32 means fp32: no allowance.
Allowance tensor_core_allowance(const Problem& problem);

// The rungs that the device has, slowest first.
std::vector<attune_mode> cuda_rungs(int compute_capability, Pass pass = Pass::forward);

}  // namespace attune::check
