// Proposals by language models behind an OpenAI-compatible endpoint. Requests run in threads of
// their own while the run goes on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evolve/propose/proposer.hpp"

namespace attune::evolve {

struct ModelPrice {
  double in = 0, out = 0;  // USD for a million tokens
};

// Of one model, where they are not those of all.
struct ModelLimits {
  std::optional<double> temperature, timeout, retry_delay;
  std::optional<int64_t> max_tokens;
  std::optional<int> retries;
};

struct ModelChoice {
  std::string name;
  double weight = 1;
  std::optional<ModelPrice> price;
  ModelLimits own = {};
};

// All of it is recorded. There is no key in it.
struct ModelSettings {
  std::string url;  // with or without /v1
  std::vector<ModelChoice> models;
  std::string key_env;  // the variable that has the key; empty: ATTUNE_LLM_KEY, OPENAI_API_KEY
  std::string system_message;  // empty: our own
  double temperature = 0.7;
  int64_t max_tokens = 8192;  // of one answer
  double timeout = 300;       // seconds of one request
  double idle_timeout = 120, connect_timeout = 10;
  int retries = 3;
  double retry_delay = 1;      // seconds before the first retry; doubled each time
  int parallel = 2;            // requests at once
  double share = 0.5;          // of all proposals
  double rewrite_share = 0.3;  // of the questions: they ask for a whole block, others for edits
  int inspirations = 2;        // other programs in a question, at most
  // Of the whole run, all its sittings; 0: no limit.
  int64_t most_requests = 0, most_tokens = 0;
  double most_cost = 0;  // USD
};

// "NAME", "NAME:WEIGHT": a last part that is a number is the weight ("qwen2.5-coder:7b" has none).
Status parse_model(const std::string& text, ModelChoice* model);
// "NAME=IN,OUT" for a million tokens.
Status parse_price(const std::string& text, std::string* name, ModelPrice* price);
// As this model is asked: its own limits in place of those of all.
ModelSettings settings_for(const ModelSettings& settings, const std::string& model);
Status check(const ModelSettings& settings);  // not ok: what makes no sense

Json to_json(const ModelSettings& settings);
ModelSettings model_settings_of(const Json& json);  // throws Json::exception

// The key from the environment, which has it no longer then: no child gets it. Empty: there is
// none. A key that was not named for this purpose is not sent over plain HTTP to another machine.
// `note` says so.
Status take_key(const ModelSettings& settings, std::string* key, std::string* note);

std::shared_ptr<Proposer> model_proposer(ModelSettings settings, std::string key, uint64_t seed,
                                         std::function<bool()> stop);

}  // namespace attune::evolve
