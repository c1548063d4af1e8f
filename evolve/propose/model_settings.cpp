// What models are asked with: read, checked, recorded. And the key, which is none of that.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "evolve/propose/chat.hpp"
#include "evolve/propose/model.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

bool number_in(const std::string& text, double* value) {
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == 0 && std::isfinite(*value) &&
         text.find_first_not_of("0123456789.eE+-") == std::string::npos;
}

}  // namespace

Status parse_model(const std::string& text, ModelChoice* model) {
  *model = {text, 1, {}};
  const size_t colon = text.rfind(':');
  double weight = 0;
  if (colon != std::string::npos && number_in(text.substr(colon + 1), &weight)) {
    if (!(weight > 0 && weight <= 1e6))
      return Status::invalid(fmt::format("'{}': a weight is above 0", text));
    model->name = text.substr(0, colon);
    model->weight = weight;
  }
  if (model->name.empty()) return Status::invalid("a model has a name");
  return {};
}

Status parse_price(const std::string& text, std::string* name, ModelPrice* price) {
  const size_t equals = text.rfind('='), comma = text.find(',', equals);
  if (equals == std::string::npos || equals == 0 || comma == std::string::npos ||
      !number_in(text.substr(equals + 1, comma - equals - 1), &price->in) ||
      !number_in(text.substr(comma + 1), &price->out) || price->in < 0 || price->out < 0)
    return Status::invalid(
        fmt::format("'{}' is no price: NAME=IN,OUT, in USD for a million tokens", text));
  *name = text.substr(0, equals);
  return {};
}

ModelSettings settings_for(const ModelSettings& settings, const std::string& model) {
  ModelSettings s = settings;
  for (const ModelChoice& m : settings.models) {
    if (m.name != model) continue;
    s.temperature = m.own.temperature.value_or(s.temperature);
    s.timeout = m.own.timeout.value_or(s.timeout);
    s.retry_delay = m.own.retry_delay.value_or(s.retry_delay);
    s.max_tokens = m.own.max_tokens.value_or(s.max_tokens);
    s.retries = m.own.retries.value_or(s.retries);
  }
  return s;
}

namespace {

Status check_limits(const ModelSettings& s) {
  if (!(s.temperature >= 0 && s.temperature <= 2))
    return Status::invalid("a temperature is from 0 to 2");
  if (s.max_tokens < 1 || s.retries < 0 || s.parallel < 1 || !(s.timeout > 0) ||
      !(s.idle_timeout > 0) || !(s.connect_timeout > 0) || !(s.retry_delay >= 0) ||
      s.most_requests < 0 || s.most_tokens < 0 || !(s.most_cost >= 0))
    return Status::invalid("a limit of the models is below what makes sense");
  return {};
}

}  // namespace

Status check(const ModelSettings& s) {
  std::string endpoint;
  ATTUNE_TRY(endpoint_of(s.url, &endpoint));
  if (s.models.empty()) return Status::invalid("no model is named");
  for (size_t i = 0; i < s.models.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      if (s.models[i].name == s.models[j].name)
        return Status::invalid(fmt::format("the model {} is named twice", s.models[i].name));
    if (s.most_cost > 0 && !s.models[i].price)
      return Status::invalid(fmt::format(
          "a limit of the cost needs the price of {0}: --price {0}=IN,OUT", s.models[i].name));
  }
  if (!(s.rewrite_share >= 0 && s.rewrite_share <= 1) || s.inspirations < 0)
    return Status::invalid("a share of questions, or a number of programs, makes no sense");
  if (!(s.share > 0 && s.share <= 1)) return Status::invalid("the share is above 0, and 1 at most");
  for (const ModelChoice& m : s.models) ATTUNE_TRY(check_limits(settings_for(s, m.name)));
  return {};
}

Json to_json(const ModelSettings& s) {
  Json models = Json::array();
  for (const ModelChoice& m : s.models) {
    Json own = Json::object();
    const auto put = [&](const char* name, const auto& value) {
      if (value) own[name] = *value;
    };
    put("temperature", m.own.temperature);
    put("timeout", m.own.timeout);
    put("retry_delay", m.own.retry_delay);
    put("max_tokens", m.own.max_tokens);
    put("retries", m.own.retries);
    models.push_back({{"name", m.name},
                      {"weight", m.weight},
                      {"price", m.price ? Json{m.price->in, m.price->out} : Json()},
                      {"own", own}});
  }
  return {{"url", s.url},
          {"models", models},
          {"key_env", s.key_env},
          {"system_message", s.system_message},
          {"temperature", s.temperature},
          {"max_tokens", s.max_tokens},
          {"timeout", s.timeout},
          {"idle_timeout", s.idle_timeout},
          {"connect_timeout", s.connect_timeout},
          {"retries", s.retries},
          {"retry_delay", s.retry_delay},
          {"parallel", s.parallel},
          {"share", s.share},
          {"rewrite_share", s.rewrite_share},
          {"inspirations", s.inspirations},
          {"most_requests", s.most_requests},
          {"most_tokens", s.most_tokens},
          {"most_cost", s.most_cost}};
}

ModelSettings model_settings_of(const Json& json) {
  ModelSettings s;
  json.at("url").get_to(s.url);
  for (const Json& m : json.at("models")) {
    ModelChoice c{m.at("name").get<std::string>(), number_of(m.at("weight")), {}, {}};
    const Json own = m.value("own", Json::object());  // older runs have none
    const auto take = [&](const char* name, auto* value) {
      using Value = typename std::remove_pointer_t<decltype(value)>::value_type;
      if (own.contains(name)) *value = own.at(name).get<Value>();
    };
    take("temperature", &c.own.temperature);
    take("timeout", &c.own.timeout);
    take("retry_delay", &c.own.retry_delay);
    take("max_tokens", &c.own.max_tokens);
    take("retries", &c.own.retries);
    if (m.at("price").is_array())
      c.price = ModelPrice{number_of(m["price"].at(0)), number_of(m["price"].at(1))};
    s.models.push_back(std::move(c));
  }
  const auto read = [&](const char* name, auto* value) { json.at(name).get_to(*value); };
  read("key_env", &s.key_env);
  read("system_message", &s.system_message);
  read("temperature", &s.temperature);
  read("max_tokens", &s.max_tokens);
  read("timeout", &s.timeout);
  read("idle_timeout", &s.idle_timeout);
  read("connect_timeout", &s.connect_timeout);
  read("retries", &s.retries);
  read("retry_delay", &s.retry_delay);
  read("parallel", &s.parallel);
  read("share", &s.share);
  s.rewrite_share = json.value("rewrite_share", s.rewrite_share);  // older runs have neither
  s.inspirations = json.value("inspirations", s.inspirations);
  read("most_requests", &s.most_requests);
  read("most_tokens", &s.most_tokens);
  read("most_cost", &s.most_cost);
  return s;
}

Status take_key(const ModelSettings& s, std::string* key, std::string* note) {
  key->clear();
  note->clear();
  std::string name = s.key_env;
  const bool named = !name.empty();
  if (!named) name = std::getenv("ATTUNE_LLM_KEY") != nullptr ? "ATTUNE_LLM_KEY" : "OPENAI_API_KEY";
  if (const char* value = std::getenv(name.c_str())) *key = value;
  for (const char* variable : {name.c_str(), "ATTUNE_LLM_KEY", "OPENAI_API_KEY"}) {
    // Overwritten too: /proc/PID/environ shows the memory of the process's first environment.
    if (char* value = std::getenv(variable)) std::fill(value, value + std::strlen(value), ' ');
    unsetenv(variable);
  }
  while (!key->empty() && std::isspace(uint8_t(key->back())) != 0) key->pop_back();
  if (named && key->empty())
    return Status::invalid(fmt::format("--llm-key-env: the variable {} is not set", name));
  for (const char c : *key)
    if (uint8_t(c) <= 0x20 || uint8_t(c) >= 0x7f)
      return Status::invalid(fmt::format("the key in {} has a character that no key has", name));
  if (name == "OPENAI_API_KEY" && !named && !key->empty() && !is_https(s.url) &&
      !is_loopback(s.url)) {
    key->clear();
    *note =
        "OPENAI_API_KEY is not sent over plain HTTP to another machine: use https, or set "
        "ATTUNE_LLM_KEY if that is what you want";
  }
  return {};
}

}  // namespace attune::evolve
