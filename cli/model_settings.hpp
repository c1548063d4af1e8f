// What a config.yaml says of the models that propose programs: its sections llm and prompt.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace YAML {
class Node;
}

namespace attune::cli {

struct ConfigModels {
  struct Model {
    std::string name;
    double weight = 1;
    std::string api_base;      // empty: the client's own
    std::string key_variable;  // of the environment; the key itself is never read from a file
    double temperature = 0.7;
    int max_tokens = 4096;
    double timeout = 60;  // seconds
    int retries = 3;
    double retry_delay = 5;  // seconds
  };
  std::vector<Model> models;
  std::string system_message;
  std::optional<double> max_budget_usd;
  std::optional<bool> diff_based;   // edits alone are asked for; else whole blocks alone
  std::optional<int> inspirations;  // top and diverse programs in a question
};

// From the whole file, whose nodes were checked to be of the right kinds. `file` is for messages.
// Throws UsageError for a literal key, and for what is no number where one belongs.
ConfigModels config_models_of(const YAML::Node& root, const std::string& file);

}  // namespace attune::cli
