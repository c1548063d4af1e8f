// Words on the command line that stand for values: dtypes, masks, modes.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/outcome.hpp"
#include "cli/ranges.hpp"
#include "kernels/problem.h"

namespace attune::cli {

template <class T>
struct Named {
  const char* name;
  T value;
};

inline constexpr Named<DType> kDTypes[] = {
    {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};

// Other spellings of dtypes; every option that takes a dtype takes them.
inline constexpr Named<const char*> kSpellings[] = {
    {"fp32", "f32"}, {"fp16", "f16"}, {"float32", "f32"}, {"float16", "f16"}, {"bfloat16", "bf16"}};

inline std::string canonical(std::string_view name) {
  for (const auto& spelling : kSpellings)
    if (name == spelling.name) return spelling.value;
  return std::string(name);
}

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

template <class T>
std::vector<T> names(const char* option, const std::string& text,
                     const std::vector<Named<T>>& table) {
  std::vector<T> values;
  for (const std::string& part : parsed(option, [&] { return split_list(text); })) {
    const auto found = std::find_if(std::begin(table), std::end(table), [&](const auto& entry) {
      return canonical(part) == entry.name;
    });
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
template <class T, size_t N>
std::vector<T> names(const char* option, const std::string& text, const Named<T> (&table)[N]) {
  return names(option, text, std::vector<Named<T>>(std::begin(table), std::end(table)));
}

}  // namespace attune::cli
