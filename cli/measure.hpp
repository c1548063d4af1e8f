// Timing attention calls on a machine that others use too: rows are interleaved in random order,
// round by round, so that noise hits all of them alike, and the peak is sampled in the same rounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/ranges.hpp"
#include "src/api/validate.hpp"
#include "src/cpu/config.hpp"

namespace attune::cli {

// What is measured: one line of the result.
struct Row {
  Shape shape;
  DType dtype = DType::f32;
  bool causal = false, lse = false;
  Alignment alignment = Alignment::top_left;
  MaskKind mask = MaskKind::none;
  attune_mode mode = ATTUNE_AUTO;
  std::optional<cpu::CpuConfig> config;  // given: this one runs, whatever the library would choose
  std::string isa;
  int threads = 1;
  bool backward = false;  // the backward pass alone, after a forward pass that is not timed

  std::string kernel;           // the id of what ran
  std::vector<double> seconds;  // a call, one value a round
  std::optional<double> extra_mb;
};

// The multiplications and additions of the two matrix products (backward: of five), over the (row,
// key) pairs that count: all of them, half of them when causal with Sq = Sk (as everyone counts),
// the allowed ones when causal with Sq != Sk.
double flops(const Row& row);

// The call of a row on the CPU. Without memory (all null) only its shapes are meant. LSE lies
// behind the output, at the next multiple of 64 bytes.
attune_args make_args(const Row& row, std::byte* inputs, std::byte* mask, std::byte* out);
attune_backward_args make_backward_args(const Row& row,
                                        const attune_args& forward);  // shapes alone

// Bad sizes, an impossible config: the reason, in the words of the library. Empty when the row can
// run. Fills row.kernel.
std::string why_not(Row& row);

struct Sampling {
  double min_seconds = 0.02;  // a sample repeats its call until this long
  int rounds = 15;
  uint64_t seed = 0;  // of the data and of the order
};

using PeakKey = std::pair<std::string, int>;           // isa, threads that run at once
using Peaks = std::map<PeakKey, std::vector<double>>;  // GFLOP/s, one value a round

PeakKey peak_key(const Row& row);  // whose peak the row is compared with

// Fills seconds and extra_mb of every row. Stops early, between two calls, on Ctrl-C. Throws
// std::runtime_error when a call fails, or when the rows need more memory than there is.
Peaks measure(std::vector<Row>& rows, const Sampling& sampling);

// The q-quantile of the values, by linear interpolation; values must not be empty.
double quantile(std::vector<double> values, double q);

}  // namespace attune::cli
