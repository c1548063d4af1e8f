// Timing attention calls on a GPU: by events, with a flushed L2 and beside it a warm one, rows
// interleaved in random order round by round, and the peak sampled in the same rounds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/measure.hpp"
#include "cli/sets.hpp"
#include "src/cuda/device.hpp"
#include "src/rungs/plan.hpp"

namespace attune::cli {

// Whose multiply-adds: CUDA cores (f32), tensor cores by mma.sync (f16, bf16), and what is left of
// those for fp32 by three fp16 products.
enum class PeakKind { f32, f16, bf16, f32_split };
const char* peak_name(PeakKind kind);

struct CudaRow {
  Work work;
  Alignment alignment = Alignment::top_left;
  MaskKind mask = MaskKind::none;
  attune_mode mode = ATTUNE_AUTO;
  std::optional<Config> config;  // given: this one runs, whatever the library would choose

  std::string kernel;   // the id of what ran
  std::string why_not;  // not empty: it was left out
  PeakKind peak = PeakKind::f32;
  int64_t workspace_bytes = 0;
  bool graph = false;                 // the warm figure is of a replayed graph
  std::vector<double> cold, warm;     // seconds a call, one value a round
  std::vector<double> sm_mhz, watts;  // while it ran
};

double flops(const CudaRow& row);
double kv_bytes(const CudaRow& row);  // of K and V: what decoding has to read

using CudaPeaks = std::map<PeakKind, std::vector<double>>;  // TFLOP/s, one value a round

// Fills the rows; those that cannot run get why_not. Stops early, between two samples, on Ctrl-C.
// Throws std::runtime_error when a call fails, or when the inputs need more memory than there is.
CudaPeaks measure_cuda(std::vector<CudaRow>& rows, const Sampling& sampling,
                       const cuda::Device& device);

// The reason why a set leaves a row out before anything is tried; empty when it does not.
std::string left_out_of_set(const CudaRow& row);

}  // namespace attune::cli
