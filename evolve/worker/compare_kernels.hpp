// Results and inputs compared where they are: on the device, by a process that no candidate is in.
#pragma once

#include <string>

#include "kernels/problem.h"
#include "src/cuda/device.hpp"
#include "src/cuda/memory.hpp"
#include "src/status.hpp"

namespace attune::evolve {

// The binary, for CompareKernels::load. It needs the run-time compiler and no GPU.
Status compile_compare_kernels(int cc, std::string* cubin);

// In the context that is current.
class CompareKernels {
 public:
  CompareKernels() = default;
  ~CompareKernels();
  CompareKernels(const CompareKernels&) = delete;
  CompareKernels& operator=(const CompareKernels&) = delete;

  Status load(const std::string& cubin);
  bool loaded() const { return module_ != nullptr; }

  // Contiguous rows of `dim` numbers: the row of `ours` that differs most from `theirs`.
  Status worst_row(const void* ours, const void* theirs, int64_t rows, int dim, DType dtype,
                   const cuda::Scope& scope, int64_t* row);
  // Of multiples of 16 bytes.
  Status same(const void* a, const void* b, int64_t bytes, const cuda::Scope& scope, bool* equal);

 private:
  Status launch(const char* name, void** parameters, const cuda::Scope& scope);

  cuda::CUmodule module_ = nullptr;
  cuda::Buffer found_;
};

}  // namespace attune::evolve
