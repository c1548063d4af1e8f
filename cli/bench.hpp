// What the two sides of `attune bench` share: options, rows, and the table.
#pragma once

#include <attune/attune.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/measure.hpp"
#include "cli/measure_cuda.hpp"
#include "cli/names.hpp"
#include "cli/output.hpp"
#include "cli/sets.hpp"

namespace attune::cli {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::string device = "cpu", set, pass = "forward";
  std::vector<std::string> shapes;
  bool sizes_given = false, dtype_given = false, causal_given = false, threads_given = false;
  std::string batch = "1", heads = "8", kv_heads, seq = "512,1024,2048", seq_k, dim = "64", dim_v;
  std::string dtype = "f32", causal = "0", mask = "none", mode, config, isa, threads = "0";
  std::string align;
  std::string seed, json, csv;  // no seed: a fresh one
  bool lse = false, list = false, cold = false, rounds_given = false;
  int arch = 0;  // that --cold compiles for; 0: the GPU here
  Sampling sampling;

  bool cuda() const { return device == "cuda"; }
  bool backward() const { return pass == "backward"; }
};

inline constexpr Named<bool> kCausal[] = {{"0", false}, {"1", true}};
inline constexpr Named<MaskKind> kMasks[] = {{"none", MaskKind::none},
                                             {"bool", MaskKind::boolean},
                                             {"f32", MaskKind::f32},
                                             {"f16", MaskKind::f16},
                                             {"bf16", MaskKind::bf16}};
inline std::vector<int64_t> values(const char* option, const std::string& text) {
  return parsed(option, [&] { return parse_values(text); });
}

// What is computed: a set's rows, or every combination of the sizes, dtypes and so on.
std::vector<Work> make_works(const BenchOptions& o);

// Throws UsageError where a causal row has two meanings and none was named.
Alignment settle_alignment(const BenchOptions& o, const Work& work);

// One table for people and for --csv: the same columns, as text. `first_number`: from that column
// on, people see them right-aligned.
using Cells = std::vector<std::string>;
std::string markdown(const std::vector<Cells>& lines, size_t first_number);
std::string csv(const std::vector<Cells>& lines);

// What is computed, as members of a row.
Json work_json(const Work& work, MaskKind mask);

// The table, or what goes to stdout in its place; and the files.
void write_results(const std::vector<Cells>& lines, size_t first_number, const Json& report,
                   Output& json, Output& csv_file);

// cli/bench_cuda.cpp
std::vector<CudaRow> make_cuda_rows(const BenchOptions& o);
std::string variant_name(const CudaRow& row);  // its mode or its config
int bench_cuda(const BenchOptions& options);

int bench_cold(const BenchOptions& options);  // cli/bench_cold.cpp

}  // namespace attune::cli
