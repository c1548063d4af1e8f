// The printed form of the CUDA configs, and back.
#include <charconv>
#include <string_view>

#include "src/select/cuda_select.hpp"

namespace attune {
namespace {

// One printed field: its tag, and where it lives: a number, or a flag that prints as 0 or 1.
// Optional: what it is by default is not printed, so that what was written before there was such a
// field still reads.
template <class Config>
struct Field {
  const char* tag;
  int Config::*number;
  bool Config::*flag = nullptr;
  bool optional = false;

  int value(const Config& config) const { return number ? config.*number : config.*flag; }
};

constexpr Field<LadderConfig> kLadderFields[] = {
    {"bq", &LadderConfig::block_q},
    {"bk", &LadderConfig::block_k},
    {"v", nullptr, &LadderConfig::vector},
};

constexpr Field<MmaConfig> kMmaFields[] = {
    {"wq", &MmaConfig::warps_q},
    {"wk", &MmaConfig::warps_k},
    {"wr", &MmaConfig::warp_rows},
    {"bk", &MmaConfig::block_k},
    {"st", &MmaConfig::stages},
    {"bs", &MmaConfig::blocks_sm},
    {"qr", nullptr, &MmaConfig::q_registers},
    {"v", nullptr, &MmaConfig::vector},
    {"sm", nullptr, &MmaConfig::stage_mask},
    {"pg", nullptr, &MmaConfig::pack_gqa},
    {"kv", nullptr, &MmaConfig::split_kv},
};

constexpr Field<WgmmaConfig> kWgmmaFields[] = {
    {"wg", &WgmmaConfig::warpgroups},
    {"bk", &WgmmaConfig::block_k},
    {"st", &WgmmaConfig::stages},
    {"qb", &WgmmaConfig::q_buffers},
    {"ov", nullptr, &WgmmaConfig::overlap},
    {"fl", nullptr, &WgmmaConfig::flat},
    {"tu", &WgmmaConfig::turn},
    {"lz", nullptr, &WgmmaConfig::lazy},
    {"ts", nullptr, &WgmmaConfig::tensor_sums},
    {"po", &WgmmaConfig::polynomial},
    {"ee", &WgmmaConfig::early_exps},
    {"sc", &WgmmaConfig::schedule},
    {"sk", nullptr, &WgmmaConfig::skip},
    {"l2", &WgmmaConfig::group_mb},
    {"pr", &WgmmaConfig::producer_registers},
    {"sm", nullptr, &WgmmaConfig::stage_mask},
    {"lm", nullptr, &WgmmaConfig::late_mask, true},
    {"pg", nullptr, &WgmmaConfig::pack_gqa, true},
    {"fm", nullptr, &WgmmaConfig::first_max, true},
    {"rs", nullptr, &WgmmaConfig::rounded_sums, true},
    {"cp", &WgmmaConfig::copy, nullptr, true},
    {"cl", &WgmmaConfig::cluster, nullptr, true},
};

constexpr struct {
  const char* name;
  Rung rung;
} kRungs[] = {{"naive", Rung::naive}, {"tiled", Rung::tiled}, {"fused", Rung::fused}};

const auto& fields_of(const LadderConfig&) { return kLadderFields; }
const auto& fields_of(const MmaConfig&) { return kMmaFields; }
const auto& fields_of(const WgmmaConfig&) { return kWgmmaFields; }

std::string name_of(const MmaConfig&) { return "mma"; }
std::string name_of(const WgmmaConfig&) { return "wgmma"; }
std::string name_of(const LadderConfig& config) {
  for (const auto& r : kRungs)
    if (r.rung == config.rung) return r.name;
  return "";
}

template <class Config>
std::string print(const Config& config) {
  std::string text = name_of(config);
  for (const auto& f : fields_of(config))
    if (!f.optional || f.value(config) != f.value(Config{}))
      text += std::string(".") + f.tag + std::to_string(f.value(config));
  return text;
}

// ".bq64" at the head of the text.
template <class Config>
bool read_field(const Field<Config>& field, std::string_view* text, Config* config) {
  const std::string tag = std::string(".") + field.tag;
  if (!text->starts_with(tag)) return field.optional;
  text->remove_prefix(tag.size());
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc()) return false;
  text->remove_prefix(size_t(end - text->data()));
  if (field.number)
    config->*field.number = value;
  else
    config->*field.flag = value != 0;
  return true;
}

// A config has one printed form: the fields in order, and no other spelling of a number.
template <class Config>
bool parse(std::string_view text, Config config, jit::Config* result) {
  std::string_view rest = text.substr(name_of(config).size());
  for (const auto& f : fields_of(config))
    if (!read_field(f, &rest, &config)) return false;
  if (print(config) != text) return false;
  *result = config;
  return true;
}

}  // namespace

std::string to_string(const jit::Config& config) {
  return std::visit([](const auto& c) { return print(c); }, config);
}

bool parse_cuda_config(const std::string& text, jit::Config* config) {
  for (const auto& r : kRungs)
    if (text.starts_with(r.name)) return parse(text, LadderConfig{.rung = r.rung}, config);
  if (text.starts_with("wgmma")) return parse(text, WgmmaConfig{}, config);
  return text.starts_with("mma") && parse(text, MmaConfig{}, config);
}

}  // namespace attune
