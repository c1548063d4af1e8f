// The multiply-add rates of a GPU, measured by kernels that do nothing else.
#pragma once

#include <vector>

#include "cli/measure_cuda.hpp"
#include "src/cuda/device.hpp"
#include "src/cuda/driver.hpp"
#include "src/cuda/memory.hpp"
#include "src/status.hpp"

namespace attune::cli {

class PeakKernels {
 public:
  // Compiles them for the device, in whose context the caller is.
  Status load(const cuda::Device& device);
  ~PeakKernels();
  PeakKernels() = default;
  PeakKernels(const PeakKernels&) = delete;
  PeakKernels& operator=(const PeakKernels&) = delete;

  // TFLOP/s of one launch of some milliseconds.
  Status measure(PeakKind kind, void* stream, double* tflops);

 private:
  struct Entry {
    PeakKind kind;
    cuda::CUfunction function;
    double flops_a_round;  // of the whole grid
    int rounds;            // calibrated by the first launch
  };
  Status launch(const Entry& entry, int rounds, void* stream, double* seconds);

  cuda::CUmodule module_ = nullptr;
  unsigned blocks_ = 0;
  std::vector<Entry> entries_;
  cuda::Buffer sink_;
  cuda::Event begin_, end_;
};

// TFLOP/s of a device, the best of several launches.
Status gpu_peak(int ordinal, PeakKind kind, double* tflops);

}  // namespace attune::cli
