#include "cli/config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "cli/evolve_external.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/yaml.hpp"

namespace attune::cli {
namespace {

constexpr uintmax_t kMostBytes = 1 << 20;

enum class Use {
  here,      // an option says the same
  external,  // the same, of an evaluator of the user's own
  models,    // of proposals: take_models()
  nothing
};
struct Key {
  const char* name;
  Use use;
};
struct Section {
  const char* name;
  std::vector<Key> keys;
};

const std::vector<Section>& sections() {
  constexpr Use here = Use::here, external = Use::external, models = Use::models,
                nothing = Use::nothing;
  static const std::vector<Section> all = {
      {"",
       {{"max_iterations", here},
        {"checkpoint_interval", here},
        {"random_seed", here},
        {"file_suffix", external},
        {"diff_based_evolution", models},
        {"log_level", nothing},
        {"log_dir", nothing},
        {"language", nothing},
        {"max_code_length", nothing},
        {"diff_pattern", nothing},
        {"early_stopping_patience", nothing},
        {"convergence_threshold", nothing},
        {"early_stopping_metric", nothing},
        {"max_tasks_per_child", nothing}}},
      {"llm",
       {{"api_base", models},
        {"api_key", models},
        {"name", models},
        {"weight", models},
        {"models", models},
        {"primary_model", models},
        {"primary_model_weight", models},
        {"secondary_model", models},
        {"secondary_model_weight", models},
        {"system_message", models},
        {"temperature", models},
        {"top_p", nothing},
        {"max_tokens", models},
        {"timeout", models},
        {"retries", models},
        {"retry_delay", models},
        {"reasoning_effort", nothing},
        {"max_budget_usd", models},
        {"evaluator_models", nothing},
        {"provider", nothing},
        {"init_client", nothing},
        {"random_seed", nothing},
        {"manual_mode", nothing}}},
      {"prompt",
       {{"system_message", models},
        {"num_top_programs", models},
        {"num_diverse_programs", models},
        {"include_artifacts", nothing},
        {"template_dir", nothing},
        {"evaluator_system_message", nothing},
        {"programs_as_changes_description", nothing},
        {"system_message_changes_description", nothing},
        {"initial_changes_description", nothing},
        {"use_template_stochasticity", nothing},
        {"template_variations", nothing},
        {"use_meta_prompting", nothing},
        {"meta_prompt_weight", nothing},
        {"max_artifact_bytes", nothing},
        {"artifact_security_filter", nothing},
        {"suggest_simplification_after_chars", nothing},
        {"include_changes_under_chars", nothing},
        {"concise_implementation_max_lines", nothing},
        {"comprehensive_implementation_min_lines", nothing},
        {"diff_summary_max_line_len", nothing},
        {"diff_summary_max_lines", nothing},
        {"code_length_threshold", nothing}}},
      {"database",
       {{"num_islands", here},
        {"random_seed", here},
        {"feature_dimensions", external},
        {"db_path", nothing},
        {"in_memory", nothing},
        {"log_prompts", nothing},
        {"population_size", nothing},
        {"archive_size", nothing},
        {"elite_selection_ratio", nothing},
        {"exploration_ratio", nothing},
        {"exploitation_ratio", nothing},
        {"diversity_metric", nothing},
        {"feature_bins", nothing},
        {"diversity_reference_size", nothing},
        {"migration_interval", nothing},
        {"migration_rate", nothing},
        {"artifacts_base_path", nothing},
        {"artifact_size_threshold", nothing},
        {"cleanup_old_artifacts", nothing},
        {"artifact_retention_days", nothing},
        {"max_snapshot_artifacts", nothing},
        {"novelty_llm", nothing},
        {"embedding_model", nothing},
        {"similarity_threshold", nothing}}},
      {"evaluator",
       {{"timeout", external},
        {"max_retries", external},
        {"cascade_evaluation", external},
        {"cascade_thresholds", external},
        {"parallel_evaluations", nothing},
        {"memory_limit_mb", nothing},
        {"cpu_limit", nothing},
        {"distributed", nothing},
        {"use_llm_feedback", nothing},
        {"llm_feedback_weight", nothing},
        {"enable_artifacts", nothing},
        {"max_artifact_storage", nothing}}},
      {"evolution_trace",
       {{"enabled", nothing},
        {"format", nothing},
        {"include_code", nothing},
        {"include_prompts", nothing},
        {"output_path", nothing},
        {"buffer_size", nothing},
        {"compress", nothing}}},
  };
  return all;
}

const Section* section_named(const std::string& name) {
  for (const Section& s : sections())
    if (s.name == name) return &s;
  return nullptr;
}

// Of database.feature_dimensions, those that OpenEvolve computes itself: no metric has them.
bool is_own_dimension(const std::string& name) {
  return name == "complexity" || name == "diversity" || name == "score";
}

struct Unused {
  std::vector<std::string> nothing, external, models, unknown;
  std::vector<std::string> file;  // acts with --evaluator alone, and there is another judge
};

// Those of llm that one of its models can have for itself.
constexpr std::array<std::string_view, 9> kOfOneModel = {"api_base", "api_key",     "name",
                                                         "weight",   "temperature", "max_tokens",
                                                         "timeout",  "retries",     "retry_delay"};

// "max_iteration (did you mean max_iterations?)". A key of another section is named with it.
std::string unknown_text(const std::string& prefix, const std::string& key,
                         const Section& section) {
  std::vector<std::string> names;
  for (const Key& k : section.keys) names.emplace_back(k.name);
  if (prefix.empty())
    for (const Section& s : sections()) names.emplace_back(s.name);
  if (const std::string near = nearest(key, names); !near.empty() && near != key)
    return fmt::format("{}{} (did you mean {}{}?)", prefix, key, prefix, near);
  for (const Section& s : sections())
    for (const Key& k : s.keys)
      if (key == k.name)
        return fmt::format("{}{} (did you mean {}{}{}?)", prefix, key, s.name,
                           *s.name == '\0' ? "" : ".", key);
  return prefix + key;
}

// The keys of llm.models[] and llm.evaluator_models[].
void sort_model_keys(const YAML::Node& models, const std::string& name, const Section& section,
                     const std::string& file, Unused* unused) {
  for (size_t n = 0; models.IsSequence() && n < models.size(); ++n) {
    const std::string prefix = fmt::format("{}[{}].", name, n);
    if (!models[n].IsMap()) continue;  // config_models_of() refuses it
    for (const auto& entry : models[n]) {
      if (!entry.first.IsScalar()) refuse_node(file, entry.first, "this is no name of a key");
      const std::string key = entry.first.Scalar();
      const bool known = std::any_of(section.keys.begin(), section.keys.end(),
                                     [&](const Key& k) { return key == k.name; });
      if (!known)
        unused->unknown.push_back(unknown_text(prefix, key, section));
      else if (std::find(kOfOneModel.begin(), kOfOneModel.end(), key) == kOfOneModel.end())
        unused->nothing.push_back(prefix + key);
    }
  }
}

void sort_keys(const YAML::Node& node, const std::string& prefix, const Section& section,
               const std::string& file, Unused* unused) {
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) refuse_node(file, entry.first, "this is no name of a key");
    const std::string key = entry.first.Scalar(), name = prefix + key;
    const Section* inner = prefix.empty() && !key.empty() ? section_named(key) : nullptr;
    if (inner != nullptr) {
      if (entry.second.IsNull()) continue;
      if (!entry.second.IsMap()) refuse_node(file, entry.second, key + " has no keys in it");
      sort_keys(entry.second, key + ".", *inner, file, unused);
      continue;
    }
    const auto known = std::find_if(section.keys.begin(), section.keys.end(),
                                    [&](const Key& k) { return key == k.name; });
    if (known == section.keys.end())
      unused->unknown.push_back(unknown_text(prefix, key, section));
    else if (known->use == Use::nothing)
      unused->nothing.push_back(name);
    else if (known->use == Use::models)
      unused->models.push_back(name);
    else if (known->use == Use::external)
      unused->external.push_back(name);
    if (name == "llm.models" || name == "llm.evaluator_models")
      sort_model_keys(entry.second, name, section, file, unused);
  }
}

YAML::Node load(const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(file, error)) throw UsageError("--config: there is no " + file);
  if (!fs::is_regular_file(file, error)) throw UsageError("--config: " + file + " is no file");
  if (fs::file_size(file, error) > kMostBytes)
    throw UsageError("--config: " + file + " is larger than any settings are");
  try {
    YAML::Node root = YAML::LoadFile(file);
    if (!root.IsMap() && !root.IsNull())
      throw UsageError("--config: " + file + " has no keys: it is no config.yaml");
    return root;
  } catch (const YAML::ParserException& e) {
    throw UsageError(fmt::format("{}:{}: this is no YAML: {}", file, e.mark.line + 1, e.msg));
  } catch (const YAML::Exception& e) {
    throw UsageError(fmt::format("--config: {} cannot be read: {}", file, e.what()));
  }
}

class Reader {
 public:
  Reader(YAML::Node root, std::string file, EvolveOptions* o)
      : root_(std::move(root)), file_(std::move(file)), o_(o) {}

  void read() {
    if (!o_->has("--iterations") && !o_->has("--budget"))
      take("", "max_iterations", &o_->iterations, 1, 1e9);
    if (!o_->has("--checkpoint-interval"))
      take("", "checkpoint_interval", &o_->checkpoint_interval, 1, 1e9);
    read_seed();
    take_text("", "file_suffix", &o_->suffix);
    if (!o_->suffix.empty() && (o_->suffix[0] != '.' || o_->suffix.find('/') != std::string::npos))
      throw UsageError(fmt::format("{}: file_suffix: '{}' is no extension", file_, o_->suffix));
    if (!o_->has("--eval-timeout")) take("evaluator", "timeout", &o_->eval_timeout, 0.01, 1e6);
    take("evaluator", "max_retries", &o_->eval_retries, 0, 100);
    take("evaluator", "cascade_evaluation", &o_->cascade, 0, 1);
    read_thresholds();
    take("database", "num_islands", &o_->islands, 1, 1000);
    read_features();
  }

 private:
  YAML::Node section(const char* name) const {
    if (*name == '\0') return root_;
    const YAML::Node node = root_[name];
    return node && node.IsMap() ? node : YAML::Node(YAML::NodeType::Map);
  }

  static std::string full(const char* name, const char* key) {
    return fmt::format("{}{}{}", name, *name == '\0' ? "" : ".", key);
  }

  template <class T>
  void take(const char* name, const char* key, T* value, double low, double high) const {
    const YAML::Node inside = section(name), node = inside[key];
    if (!node || node.IsNull()) return;
    T read = *value;
    read_value(inside, key, full(name, key), file_, &read);
    if (!(double(read) >= low && double(read) <= high))
      refuse_node(file_, node,
                  fmt::format("{}: {} is not in {}..{}", full(name, key), read, low, high));
    *value = read;
  }

  void take_text(const char* name, const char* key, std::string* value) const {
    read_value(section(name), key, full(name, key), file_, value);
  }

  void read_seed() const {
    if (o_->has("--seed")) return;
    for (const char* name : {"database", ""}) {  // the one at the top comes before the other
      std::string seed;
      take_text(name, "random_seed", &seed);
      if (!seed.empty() && seed.find_first_not_of("0123456789") == std::string::npos)
        o_->seed = seed;
      else if (!seed.empty())
        throw UsageError(
            fmt::format("{}: {}: '{}' is no seed", file_, full(name, "random_seed"), seed));
    }
  }

  void read_thresholds() const {
    std::vector<double> given;
    read_value(section("evaluator"), "cascade_thresholds", "evaluator.cascade_thresholds", file_,
               &given);
    for (size_t n = 0; n < std::min(given.size(), o_->thresholds.size()); ++n) {
      if (!std::isfinite(given[n]))
        throw UsageError(file_ + ": evaluator.cascade_thresholds: a threshold is a number");
      o_->thresholds[n] = given[n];
    }
  }

  void read_features() const {
    std::vector<std::string> given;
    read_value(section("database"), "feature_dimensions", "database.feature_dimensions", file_,
               &given);
    for (const std::string& name : given)
      if (!is_own_dimension(name)) o_->features.push_back(name);
  }

  YAML::Node root_;
  std::string file_;
  EvolveOptions* o_;
};

// Keys that are in use, and parts of which are not.
void add_parts(const YAML::Node& root, Unused* unused) {
  const auto node = [&](const char* section, const char* key) {
    const YAML::Node inside = root[section];
    const YAML::Node value = inside && inside.IsMap() ? inside[key] : YAML::Node();
    return value && !value.IsNull() ? value : YAML::Node();
  };
  if (!node("prompt", "system_message").IsNull() && !node("llm", "system_message").IsNull())
    unused->nothing.emplace_back("llm.system_message (prompt.system_message comes first)");
  const YAML::Node seed = root["random_seed"];
  if (seed && !seed.IsNull() && !node("database", "random_seed").IsNull())
    unused->nothing.emplace_back("database.random_seed (random_seed comes first)");
  // A cascade has three stages: two thresholds stand between them.
  const YAML::Node thresholds = node("evaluator", "cascade_thresholds");
  for (size_t n = 2; thresholds.IsSequence() && n < thresholds.size(); ++n)
    unused->nothing.push_back(fmt::format("evaluator.cascade_thresholds[{}]", n));
  for (const YAML::Node& name : node("database", "feature_dimensions"))
    if (name.IsScalar() && is_own_dimension(name.Scalar()))
      unused->nothing.push_back(fmt::format("database.feature_dimensions: {}", name.Scalar()));
}

// Of the keys for an evaluator of one's own, those that a command or our judge has no use for.
void move_idle(const EvolveOptions& o, Unused* unused) {
  if (!is_scored(o) || !o.evaluator.empty()) return;
  std::vector<std::string> idle = {"evaluator.cascade_evaluation", "evaluator.cascade_thresholds",
                                   "database.feature_dimensions"};
  if (o.eval_command.empty()) idle.emplace_back("evaluator.max_retries");
  for (const std::string& key : unused->external)
    if (std::find(idle.begin(), idle.end(), key) != idle.end()) unused->file.push_back(key);
}

}  // namespace

void apply_config(EvolveOptions* o) {
  const YAML::Node root = load(o->config);
  Unused unused;
  if (root.IsMap()) sort_keys(root, "", *section_named(""), o->config, &unused);
  if (root.IsMap()) {
    add_parts(root, &unused);
    move_idle(*o, &unused);
    Reader(root, o->config, o).read();
    if (take_models(config_models_of(root, o->config), &o->proposers)) unused.models.clear();
  }
  std::string text;
  const auto add = [&](const char* what, const std::vector<std::string>& keys) {
    if (!keys.empty())
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", what, fmt::join(keys, ", "));
  };
  add("not known", unused.unknown);
  add("not used here", unused.nothing);
  add("only for --evaluator", unused.file);
  if (!is_scored(*o))
    add("only for an evaluator of your own (--evaluator, --eval-command)", unused.external);
  add("no model is asked for programs: --llm URL does, and ATTUNE_LLM_KEY, OPENAI_API_KEY or "
      "api_key: ${NAME} have its key",
      unused.models);
  if (!text.empty()) talk(fmt::format("{}: {}", o->config, text));
}

}  // namespace attune::cli
