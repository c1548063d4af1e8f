#include "src/cpu/config.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace attune::cpu {
namespace {

// One printed field: its tag, and where it lives.
struct Field {
  const char* tag;
  int CpuConfig::*number;
};
constexpr Field kFields[] = {
    {"mr", &CpuConfig::mr},        {"nv", &CpuConfig::nv},      {"exp", &CpuConfig::exp_degree},
    {"bq", &CpuConfig::block_q},   {"bk", &CpuConfig::block_k}, {"sp", &CpuConfig::splits},
    {"dot", &CpuConfig::dot_rows},
};

bool read_number(std::string_view text, float* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string to_string(const CpuConfig& c) {
  std::string text;
  for (const Field& f : kFields) text += f.tag + std::to_string(c.*f.number) + ".";
  text += c.pack_v ? "pv1.rs" : "pv0.rs";
  char threshold[32];
  const auto [end, error] =
      std::to_chars(threshold, threshold + sizeof(threshold), c.rescale_threshold);
  return text.append(threshold, error == std::errc() ? end : threshold);
}

std::optional<CpuConfig> parse_cpu_config(std::string_view text) {
  CpuConfig c;
  // The threshold comes last, since a fraction's point would look like the next field.
  while (!text.empty()) {
    const size_t tag_end = text.find_first_of("0123456789-");
    if (tag_end == std::string_view::npos) return std::nullopt;
    const std::string_view tag = text.substr(0, tag_end);
    const bool last = tag == "rs";
    const size_t stop = last ? text.size() : std::min(text.find('.'), text.size());
    if (stop < tag_end) return std::nullopt;
    float value = 0;
    if (!read_number(text.substr(tag_end, stop - tag_end), &value)) return std::nullopt;
    text.remove_prefix(std::min(text.size(), stop + 1));
    if (last) {
      c.rescale_threshold = value;
      continue;
    }
    if (value != std::trunc(value) || std::abs(value) > 1e6f) return std::nullopt;
    const int number = static_cast<int>(value);
    bool known = false;
    for (const Field& f : kFields) {
      if (tag == f.tag) {
        c.*f.number = number;
        known = true;
      }
    }
    if (tag == "pv" && (number == 0 || number == 1)) {
      c.pack_v = number == 1;
      known = true;
    }
    if (!known) return std::nullopt;
  }
  return c;
}

std::string to_string(const IsaConfig& c) {
  return c.isa.empty() ? to_string(c.config) : c.isa + "." + to_string(c.config);
}

std::optional<IsaConfig> parse_isa_config(std::string_view text) {
  IsaConfig c;
  std::string_view rest = text;
  // Names of instruction sets are in capitals, tags of fields are not.
  if (!rest.empty() && rest[0] >= 'A' && rest[0] <= 'Z') {
    const size_t end = std::min(rest.find('.'), rest.size());
    c.isa = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const std::optional<CpuConfig> config = parse_cpu_config(rest);
  if (!config) return std::nullopt;
  c.config = *config;
  if (to_string(c) != text) return std::nullopt;
  return c;
}

}  // namespace attune::cpu
