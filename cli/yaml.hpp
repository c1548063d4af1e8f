// Values of a YAML file, with the line in every complaint.
#pragma once

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <string>

#include "cli/outcome.hpp"

namespace attune::cli {

[[noreturn]] inline void refuse_node(const std::string& file, const YAML::Node& node,
                                     const std::string& why) {
  throw UsageError(fmt::format("{}:{}: {}", file, node.Mark().line + 1, why));
}

// Leaves `value` as it is where there is no such key, or it is null.
template <class T>
void read_value(const YAML::Node& section, const char* key, const std::string& name,
                const std::string& file, T* value) {
  if (!section.IsMap()) return;
  const YAML::Node node = section[key];
  if (!node || node.IsNull()) return;
  try {
    *value = node.as<T>();
  } catch (const YAML::Exception&) {
    const char* kind = std::is_same_v<T, bool>          ? "neither true nor false"
                       : std::is_same_v<T, std::string> ? "no text"
                       : std::is_integral_v<T>          ? "no whole number"
                       : std::is_floating_point_v<T>    ? "no number"
                                                        : "no list of such values";
    refuse_node(
        file, node,
        fmt::format("{}: {} is {}", name,
                    node.IsScalar() ? "'" + node.Scalar() + "'" : std::string("this"), kind));
  }
}

}  // namespace attune::cli
