// What the two sides of `attune bench` share: options, rows, and the table.
#pragma once

#include <attune/attune.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/measure.hpp"
#include "cli/measure_cuda.hpp"
#include "cli/outcome.hpp"
#include "cli/output.hpp"
#include "cli/ranges.hpp"
#include "cli/sets.hpp"

namespace attune::cli {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::string device = "cpu", set;
  std::vector<std::string> shapes;
  bool sizes_given = false, dtype_given = false, causal_given = false, threads_given = false;
  std::string batch = "1", heads = "8", kv_heads, seq = "512,1024,2048", seq_k, dim = "64", dim_v;
  std::string dtype = "f32", causal = "0", mask = "none", mode, config, isa, threads = "0";
  std::string align;
  std::string json, csv;
  bool list = false;
  Plan plan;

  bool cuda() const { return device == "cuda"; }
};

template <class T>
struct Named {
  const char* name;
  T value;
};

inline constexpr Named<DType> kDTypes[] = {
    {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
inline constexpr Named<bool> kCausal[] = {{"0", false}, {"1", true}};
inline constexpr Named<MaskKind> kMasks[] = {{"none", MaskKind::none},
                                             {"bool", MaskKind::boolean},
                                             {"f32", MaskKind::f32},
                                             {"f16", MaskKind::f16},
                                             {"bf16", MaskKind::bf16}};
template <class T, size_t N>
std::string name_of(const Named<T> (&table)[N], T value) {
  for (const Named<T>& entry : table)
    if (entry.value == value) return entry.name;
  return "?";
}

// Runs a parser of cli/ranges.hpp and puts the option's name before its complaint.
template <class Fn>
auto parsed(const char* option, Fn&& parse) {
  try {
    return parse();
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("{}: {}", option, error.what()));
  }
}

template <class T, size_t N>
std::vector<T> names(const char* option, const std::string& text, const Named<T> (&table)[N]) {
  std::vector<T> values;
  for (const std::string& part : parsed(option, [&] { return split_list(text); })) {
    const auto* found = std::find_if(std::begin(table), std::end(table),
                                     [&](const Named<T>& entry) { return part == entry.name; });
    if (found == std::end(table)) {
      std::vector<std::string> known;
      for (const Named<T>& entry : table) known.emplace_back(entry.name);
      throw UsageError(
          fmt::format("{}: '{}' is not one of {}", option, part, fmt::join(known, ", ")));
    }
    values.push_back(found->value);
  }
  return values;
}

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

}  // namespace attune::cli
