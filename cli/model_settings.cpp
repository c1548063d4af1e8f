#include "cli/model_settings.hpp"

#include <cmath>

#include "cli/yaml.hpp"

namespace attune::cli {
namespace {

// "${NAME}" -> "NAME".
std::string variable_of(const YAML::Node& section, const std::string& name,
                        const std::string& file) {
  if (!section.IsMap()) return "";
  const YAML::Node node = section["api_key"];
  if (!node || node.IsNull() || (node.IsScalar() && node.Scalar().empty())) return "";
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const std::string inside =
      text.starts_with("${") && text.ends_with('}') ? text.substr(2, text.size() - 3) : "";
  const bool is_name = !inside.empty() && inside.find_first_not_of(
                                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "abcdefghijklmnopqrstuvwxyz"
                                              "0123456789_") == std::string::npos;
  if (!is_name)  // the text is not repeated: it may be the key
    refuse_node(file, node,
                name +
                    ".api_key: write the name of an environment variable, ${NAME}, and not the "
                    "key itself: files are copied and committed");
  return inside;
}

// OpenEvolve puts variables of the environment into api_key alone; elsewhere the text would be sent
// as it stands.
void refuse_variable(const YAML::Node& section, const char* key, const std::string& name,
                     const std::string& file) {
  if (!section.IsMap()) return;
  const YAML::Node node = section[key];
  if (node && node.IsScalar() && node.Scalar().find("${") != std::string::npos)
    refuse_node(file, node,
                fmt::format("{}: '{}': variables are put into api_key alone; write the value", name,
                            node.Scalar()));
}

void read_model(const YAML::Node& node, const std::string& name, const std::string& file,
                ConfigModels::Model* m) {
  const auto read = [&](const char* key, auto* value) {
    read_value(node, key, name + "." + key, file, value);
  };
  read("name", &m->name);
  read("weight", &m->weight);
  read("api_base", &m->api_base);
  for (const char* key : {"name", "api_base"}) refuse_variable(node, key, name + "." + key, file);
  read("temperature", &m->temperature);
  read("max_tokens", &m->max_tokens);
  read("timeout", &m->timeout);
  read("retries", &m->retries);
  read("retry_delay", &m->retry_delay);
  if (const std::string variable = variable_of(node, name, file); !variable.empty())
    m->key_variable = variable;
  if (!(m->weight >= 0) || std::isinf(m->weight))
    refuse_node(file, node, name + ".weight: it must be 0 or more");
}

}  // namespace

ConfigModels config_models_of(const YAML::Node& root, const std::string& file) {
  ConfigModels s;
  const YAML::Node llm = root["llm"], prompt = root["prompt"];
  bool diff_based = false;
  read_value(root, "diff_based_evolution", "diff_based_evolution", file, &diff_based);
  if (const YAML::Node node = root["diff_based_evolution"]; node && !node.IsNull())
    s.diff_based = diff_based;
  if (prompt && prompt.IsMap()) {
    for (const char* key : {"num_top_programs", "num_diverse_programs"}) {
      constexpr int kMost = 100;
      int count = -1;
      read_value(prompt, key, std::string("prompt.") + key, file, &count);
      const YAML::Node node = prompt[key];
      if (!node || node.IsNull()) continue;
      if (count < 0 || count > kMost)
        refuse_node(file, node, fmt::format("prompt.{}: {} is not in 0..{}", key, count, kMost));
      s.inspirations = s.inspirations.value_or(0) + count;
    }
    const auto read = [&](const char* key, auto* value) {
      read_value(prompt, key, std::string("prompt.") + key, file, value);
    };
    read("system_message", &s.system_message);
  }
  if (!llm || !llm.IsMap()) return s;
  ConfigModels::Model common;
  read_model(llm, "llm", file, &common);
  if (s.system_message.empty())
    read_value(llm, "system_message", "llm.system_message", file, &s.system_message);
  double budget = NAN;
  read_value(llm, "max_budget_usd", "llm.max_budget_usd", file, &budget);
  if (!std::isnan(budget)) s.max_budget_usd = budget;
  if (!common.name.empty()) s.models.push_back(common);
  for (const std::string which : {"primary_model", "secondary_model"}) {
    ConfigModels::Model m = common;
    m.name.clear();
    m.weight = which == "primary_model" ? 1 : 0;
    read_value(llm, which.c_str(), "llm." + which, file, &m.name);
    refuse_variable(llm, which.c_str(), "llm." + which, file);
    read_value(llm, (which + "_weight").c_str(), "llm." + which + "_weight", file, &m.weight);
    if (!m.name.empty() && m.weight > 0) s.models.push_back(m);
  }
  const auto read_list = [&](const char* key, std::vector<ConfigModels::Model>* list) {
    const YAML::Node nodes = llm[key];
    if (!nodes || nodes.IsNull()) return;
    if (!nodes.IsSequence()) refuse_node(file, nodes, fmt::format("llm.{} is no list", key));
    for (size_t n = 0; n < nodes.size(); ++n) {
      const std::string name = fmt::format("llm.{}[{}]", key, n);
      ConfigModels::Model m = common;
      m.name.clear();
      m.weight = 1;
      if (!nodes[n].IsMap()) refuse_node(file, nodes[n], name + " has no keys");
      read_model(nodes[n], name, file, &m);
      if (m.name.empty()) refuse_node(file, nodes[n], name + " has no name");
      list->push_back(m);
    }
  };
  read_list("models", &s.models);
  std::vector<ConfigModels::Model> unused;  // their keys are looked at all the same
  read_list("evaluator_models", &unused);
  return s;
}

}  // namespace attune::cli
