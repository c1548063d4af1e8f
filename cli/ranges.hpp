// How shapes are written on the command line: lists, ranges, and BxHxSxD.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace attune::cli {

namespace detail {

inline constexpr int64_t kLargest = 1'000'000'000;  // larger sizes are typing errors
inline constexpr size_t kMostValues = 1000;

[[noreturn]] inline void refuse(const std::string& reason) { throw std::invalid_argument(reason); }

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

inline int64_t parse_number(std::string_view text, std::string_view whole) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    refuse(fmt::format("{} in '{}' is above {}", text, whole, kLargest));
  if (error != std::errc() || end != text.data() + text.size())
    refuse(text == whole ? fmt::format("'{}' is not a whole number", text)
                         : fmt::format("'{}' in '{}' is not a whole number", text, whole));
  if (value < 1 || value > kLargest)
    refuse(fmt::format("{} in '{}' is not in 1..{}", value, whole, kLargest));
  return value;
}

inline void append_range(std::string_view item, std::vector<int64_t>& values) {
  const std::vector<std::string_view> parts = split(item, ':');
  const int64_t begin = parse_number(parts[0], item);
  if (parts.size() == 1) {
    values.push_back(begin);
    return;
  }
  const bool stepped =
      parts.size() == 3 && parts[2].size() >= 2 && (parts[2][0] == 'x' || parts[2][0] == '+');
  if (!stepped)
    refuse(fmt::format("'{}' is not a range: write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP", item));
  const int64_t end = parse_number(parts[1], item);
  const bool multiply = parts[2][0] == 'x';
  const int64_t step = parse_number(parts[2].substr(1), item);
  if (end < begin) refuse(fmt::format("'{}' ends at {}, before it begins at {}", item, end, begin));
  if (multiply && step < 2) refuse(fmt::format("'{}' never ends: the factor is {}", item, step));
  for (int64_t v = begin; v <= end; v = multiply ? v * step : v + step) {
    if (values.size() == kMostValues)
      refuse(fmt::format("'{}' gives more than {} values", item, kMostValues));
    values.push_back(v);
  }
}

// "8/2" -> 8, 2; "8" -> 8, 8.
inline void parse_pair(std::string_view text, std::string_view whole, int64_t& first,
                       int64_t& second) {
  const size_t slash = text.find('/');
  first = parse_number(text.substr(0, slash), whole);
  second = slash == std::string_view::npos ? first : parse_number(text.substr(slash + 1), whole);
}

inline std::string pair_text(int64_t first, int64_t second) {
  return first == second ? fmt::format("{}", first) : fmt::format("{}/{}", first, second);
}

}  // namespace detail

// "512", "512,1024", "512:4096:x2" (512 1024 2048 4096), "128:512:+128" (128 256 384 512), and
// lists of these. The end of a range is included when a step lands on it. Throws
// std::invalid_argument with the reason.
inline std::vector<int64_t> parse_values(std::string_view text) {
  std::vector<int64_t> values;
  for (std::string_view item : detail::split(text, ',')) detail::append_range(item, values);
  return values;
}

struct Shape {
  int64_t batch = 1;
  int64_t heads = 8, heads_kv = 8;
  int64_t seq_q = 0, seq_k = 0;
  int64_t dim = 0, dim_v = 0;
  bool operator==(const Shape&) const = default;
};

// "1x8x512x64" (batch, heads, sequence, head dimension). Where two numbers differ they stand beside
// each other: "1x8/2x1/16384x64/128" has 2 key heads, 16384 keys and Dv=128. Throws
// std::invalid_argument with the reason.
inline Shape parse_shape(std::string_view text) {
  const std::vector<std::string_view> parts = detail::split(text, 'x');
  if (parts.size() != 4)
    detail::refuse(
        fmt::format("'{}' has {} parts; a shape has 4: BATCHxHEADSxSEQxDIM, as in 1x8x512x64", text,
                    parts.size()));
  Shape s;
  s.batch = detail::parse_number(parts[0], text);
  detail::parse_pair(parts[1], text, s.heads, s.heads_kv);
  detail::parse_pair(parts[2], text, s.seq_q, s.seq_k);
  detail::parse_pair(parts[3], text, s.dim, s.dim_v);
  return s;
}

// Parses back.
inline std::string to_string(const Shape& s) {
  return fmt::format("{}x{}x{}x{}", s.batch, detail::pair_text(s.heads, s.heads_kv),
                     detail::pair_text(s.seq_q, s.seq_k), detail::pair_text(s.dim, s.dim_v));
}

// Any value of 64 bits. Throws std::invalid_argument.
inline uint64_t parse_seed(std::string_view text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    detail::refuse(fmt::format("'{}' is not a whole number from 0 to {}", text, UINT64_MAX));
  return seed;
}

// "a,b,c" without empty parts. Throws std::invalid_argument.
inline std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  for (std::string_view part : detail::split(text, ',')) {
    if (part.empty()) detail::refuse(fmt::format("'{}' has an empty part", text));
    parts.emplace_back(part);
  }
  return parts;
}

}  // namespace attune::cli
