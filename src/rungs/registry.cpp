#include "src/rungs/registry.hpp"

#include <algorithm>
#include <charconv>

#include "src/problem.hpp"
#include "src/rungs/samples.hpp"
#include "src/rungs/typed.hpp"

namespace attune {
namespace {

constexpr int64_t kMaxGrid = 2147483647;  // blocks of a launch
// Kernels count rows and keys in 32 bits, and look up to a tile past the last one.
constexpr int64_t kMaxLength = 2147483647 - 1024;

// ".bq64" at the head of the text.
bool read_field(const Field& field, std::string_view* text, int32_t* value) {
  *value = field.standard;
  if (*field.tag == '\0') return true;
  const std::string tag = std::string(".") + field.tag;
  if (!text->starts_with(tag)) return field.optional;
  text->remove_prefix(tag.size());
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc()) return false;
  if (!field.labels.empty() && (*value < 0 || size_t(*value) >= field.labels.size())) return false;
  text->remove_prefix(size_t(end - text->data()));
  return true;
}

}  // namespace

// The slowest first: the ladder.
std::span<const Rung* const> rungs(Pass pass) {
  static const Rung* const kForward[] = {&naive_rung(), &tiled_rung(), &fused_rung(), &mma_rung(),
                                         &wgmma_rung()};
  static const Rung* const kBackward[] = {&fused_backward_rung(), &mma_backward_rung()};
  if (pass == Pass::backward) return kBackward;
  return kForward;
}

const Rung* rung_named(std::string_view name, Pass pass) {
  for (const Rung* rung : rungs(pass))
    if (rung->name == name) return rung;
  return nullptr;
}

const Rung* rung_of(attune_mode mode, Pass pass) {
  for (const Rung* rung : rungs(pass))
    if (rung->mode == mode) return rung;
  return nullptr;
}

std::vector<Request> Rung::ships(const Arch& arch) const { return common_samples(arch); }
std::vector<DefaultCall> Rung::default_calls(const Arch&) const { return {}; }
bool Rung::read_older(std::string_view, Config*) const { return false; }
std::string Rung::pointless(std::span<const Request>, const Config&) const { return ""; }

int value_of(const Config& config, std::string_view field) {
  for (size_t i = 0; i < config.rung->fields.size(); ++i)
    if (config.rung->fields[i].name == field) return config.values[i];
  return 0;
}

std::string to_string(const Config& config) {
  if (config.rung == nullptr) return "";
  std::string text = config.rung->name;
  for (size_t i = 0; i < config.rung->fields.size(); ++i) {
    const Field& f = config.rung->fields[i];
    if (*f.tag != '\0' && !(f.optional && config.values[i] == f.standard))
      text += std::string(".") + f.tag + std::to_string(config.values[i]);
  }
  return text;
}

bool parse_config(std::string_view text, Config* config, Pass pass) {
  std::string_view rest = text;
  const Rung* rung = rung_named(rest.substr(0, rest.find('.')), pass);
  if (rung == nullptr) return false;
  if (rung->read_older(text, config)) return true;
  rest.remove_prefix(std::string_view(rung->name).size());
  Config read{rung, {}};
  for (size_t i = 0; i < rung->fields.size(); ++i)
    if (!read_field(rung->fields[i], &rest, &read.values[i])) return false;
  if (to_string(read) != text) return false;
  *config = read;
  return true;
}

Config compiled(const Config& config) {
  Config only = config;
  for (size_t i = 0; i < config.rung->fields.size(); ++i)
    if (!config.rung->fields[i].compiled) only.values[i] = config.rung->fields[i].standard;
  return only;
}

// ---- what rungs share ----

Plan plan_of_unit(const Request& r, const Config& config) {
  Plan plan;
  plan.id = cuda_problem_id(r.problem, r.arch) + "/" + to_string(config);
  plan.units = {{kernel_key(r.problem), compiled(config), r.score_mod, r.mask_mod, r.arch}};
  return plan;
}

std::string cuda_problem_id(const Problem& problem, const Arch& arch) {
  return problem_id(problem, "sm" + std::to_string(arch.cc));
}

std::string too_many_blocks(int64_t blocks) {
  if (blocks <= kMaxGrid) return "";
  return "needs " + std::to_string(blocks) + " blocks; a launch has at most " +
         std::to_string(kMaxGrid);
}

// Heads of a group share a tile only where their rows together are few: they add nothing here.
std::string too_long(const Problem& p) {
  if (std::max(p.seq_k, p.seq_q) <= kMaxLength) return "";
  return "takes sequences of at most " + std::to_string(kMaxLength);
}

std::string needs_capability(const Request& r, int cc) {
  if (r.arch.cc >= cc) return "";
  const auto text = [](int n) { return std::to_string(n / 10) + "." + std::to_string(n % 10); };
  return "needs compute capability " + text(cc) + "; this device has " + text(r.arch.cc);
}

}  // namespace attune
