#include "cli/proposers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cli/evolve_options.hpp"
#include "cli/machine.hpp"
#include "cli/outcome.hpp"
#include "cli/ranges.hpp"
#include "cli/terminal.hpp"
#include "evolve/propose/chat.hpp"
#include "evolve/propose/curl.hpp"
#include "evolve/propose/manual.hpp"
#include "evolve/store/store.hpp"

namespace attune::cli {
namespace {

using evolve::Json;

constexpr const char* kManual = "manual";
constexpr double kPeakSeconds = 0.3;

// "manual", "manual:FOLDER"; the folder, empty: in the run's.
std::string manual_folder(const std::string& text) {
  if (text == kManual) return "";
  const std::string start = fmt::format("{}:", kManual);
  if (!text.starts_with(start) || text.size() == start.size())
    throw UsageError(fmt::format("--propose: '{}' is neither manual nor manual:FOLDER", text));
  return text.substr(start.size());
}

evolve::ModelSettings settings_of(const ProposerOptions& o) {
  evolve::ModelSettings s = o.settings;
  const auto settle = [](const char* option, const Status& status) {
    if (!status.ok()) throw UsageError(fmt::format("{}: {}", option, status.message));
  };
  if (o.models.empty() && s.models.empty()) throw UsageError("--llm: it needs a --model");
  for (const std::string& text : o.models)
    settle("--model", parse_model(text, &s.models.emplace_back()));
  for (const std::string& text : o.prices) {
    std::string name;
    evolve::ModelPrice price;
    settle("--price", parse_price(text, &name, &price));
    const auto at = std::find_if(s.models.begin(), s.models.end(),
                                 [&](const auto& model) { return model.name == name; });
    if (at == s.models.end())
      throw UsageError(fmt::format("--price: {} is no --model of this run", name));
    at->price = price;
  }
  settle("--llm", check(s));
  return s;
}

bool is_set(const std::string& variable) {
  return !variable.empty() && std::getenv(variable.c_str()) != nullptr;
}

// What the file says, where the option kept its default.
template <class T>
void fill(T* value, const T& otherwise, const T& file) {
  if (*value == otherwise) *value = file;
}

// What the file says of this model and not of the first one, where no option says it for all.
evolve::ModelLimits own_limits(const ConfigModels::Model& m, const ConfigModels::Model& first,
                               const evolve::ModelSettings& given) {
  const evolve::ModelSettings plain;
  evolve::ModelLimits own;
  const auto take = [](auto* value, const auto& its, const auto& firsts, bool by_option) {
    if (!by_option && its != firsts) *value = its;
  };
  take(&own.temperature, m.temperature, first.temperature, given.temperature != plain.temperature);
  take(&own.max_tokens, m.max_tokens, first.max_tokens, given.max_tokens != plain.max_tokens);
  take(&own.timeout, m.timeout, first.timeout, given.timeout != plain.timeout);
  take(&own.retries, m.retries, first.retries, given.retries != plain.retries);
  take(&own.retry_delay, m.retry_delay, first.retry_delay, given.retry_delay != plain.retry_delay);
  return own;
}

std::string key_of(const evolve::ModelSettings& settings) {
  std::string key, note;
  if (const Status s = take_key(settings, &key, &note); !s.ok()) throw UsageError(s.message);
  if (!note.empty()) talk(note);
  return key;
}

}  // namespace

bool take_models(const ConfigModels& c, ProposerOptions* o) {
  evolve::ModelSettings& s = o->settings;
  if (c.models.empty()) return !s.url.empty();
  const ConfigModels::Model& first = c.models[0];
  if (s.url.empty()) {
    const bool key = is_set(first.key_variable) || is_set(s.key_env) || is_set("ATTUNE_LLM_KEY") ||
                     is_set("OPENAI_API_KEY");
    if (first.api_base.empty() || !(key || evolve::is_loopback(first.api_base))) return false;
    for (const ConfigModels::Model& m : c.models)
      if (m.api_base != first.api_base)
        throw UsageError(
            fmt::format("--config: models at {} and at {}: one endpoint is asked; "
                        "choose it by --llm and --model",
                        first.api_base, m.api_base));
      else if (m.key_variable != first.key_variable)
        throw UsageError(
            fmt::format("--config: the models {} and {} have different keys: one endpoint is asked "
                        "with one key",
                        first.name, m.name));
    s.url = first.api_base;
  }
  if (o->models.empty())
    for (const ConfigModels::Model& m : c.models)
      if (m.weight > 0) s.models.push_back({m.name, m.weight, {}, own_limits(m, first, s)});
  const evolve::ModelSettings plain;
  fill(&s.system_message, plain.system_message, c.system_message);
  fill(&s.temperature, plain.temperature, first.temperature);
  fill(&s.max_tokens, plain.max_tokens, int64_t(first.max_tokens));
  fill(&s.timeout, plain.timeout, first.timeout);
  fill(&s.retries, plain.retries, first.retries);
  fill(&s.retry_delay, plain.retry_delay, first.retry_delay);
  if (s.key_env.empty() && is_set(first.key_variable)) s.key_env = first.key_variable;
  if (c.diff_based) s.rewrite_share = *c.diff_based ? 0 : 1;
  if (c.inspirations) s.inspirations = *c.inspirations;
  if (c.max_budget_usd) fill(&s.most_cost, plain.most_cost, *c.max_budget_usd);
  return true;
}

void add_proposer_options(CLI::App* command, ProposerOptions* o) {
  const char* group = "Who proposes beside the search (for a PROGRAM)";
  const auto add = [&](const char* name, auto* value, const char* type, const char* text) {
    return command->add_option(name, *value, text)->type_name(type)->group(group);
  };
  evolve::ModelSettings& s = o->settings;
  auto* llm = add("--llm", &s.url, "URL",
                  "An OpenAI-compatible endpoint (with or without /v1). Its models\n"
                  "propose new texts of marked blocks. The key comes from the\n"
                  "environment: ATTUNE_LLM_KEY, else OPENAI_API_KEY");
  const auto of_llm = [&](CLI::Option* option) { option->needs(llm); };
  of_llm(add("--model", &o->models, "NAME[:WEIGHT]",
             "A model of the endpoint. May be repeated: those that gain more for\n"
             "their cost are asked more often"));
  of_llm(add("--llm-share", &s.share, "SHARE",
             "Of the proposals, what models are asked for (default 0.5). With 1\n"
             "the run waits for them; a run by count does when it is their turn"));
  of_llm(add("--llm-key-env", &s.key_env, "NAME", "The variable that has the key"));
  of_llm(add("--max-requests", &s.most_requests, "N", "Limit of the run: HTTP requests"));
  of_llm(add("--max-tokens", &s.most_tokens, "N", "Limit of the run: tokens, in and out"));
  of_llm(add("--max-cost", &s.most_cost, "USD", "Limit of the run; needs the price of each model"));
  of_llm(add("--price", &o->prices, "NAME=IN,OUT",
             "Price of a model in USD for a million tokens. May be repeated"));
  of_llm(
      add("--llm-answer-tokens", &s.max_tokens, "N", "The longest answer (default 8192 tokens)"));
  of_llm(add("--llm-temperature", &s.temperature, "T", "0 to 2 (default 0.7)"));
  of_llm(add("--llm-timeout", &s.timeout, "SECONDS", "Of one request (default 300)"));
  of_llm(add("--llm-idle-timeout", &s.idle_timeout, "SECONDS",
             "Without a byte of the answer (default 120)"));
  of_llm(add("--llm-retries", &s.retries, "N", "After 429, 5xx, and lost connections (default 3)"));
  of_llm(add("--llm-retry-delay", &s.retry_delay, "SECONDS",
             "Before the first retry; doubled each time (default 1)"));
  of_llm(add("--llm-parallel", &s.parallel, "N", "Requests at the same time (default 2)")
             ->check(CLI::Range(1, 64)));
  add("--propose", &o->propose, "manual[:FOLDER]",
      "Answers come as files: FOLDER (default manual/ in the run's folder)\n"
      "gets TASK.md, and takes answer-* files from a person or an agent");
}

std::string check_proposers(const EvolveOptions& o) {
  const ProposerOptions& p = o.proposers;
  if (!p.any()) return "";
  if (o.program.empty() && o.resume.empty())
    throw UsageError(
        "--llm and --propose are for a PROGRAM: its marked blocks are what they write anew");
  if (p.propose.size() > 1) throw UsageError("--propose: once is enough");
  if (!p.propose.empty()) (void)manual_folder(p.propose[0]);
  return p.settings.url.empty() || !o.resume.empty() ? "" : key_of(settings_of(p));
}

void add_proposers(const EvolveOptions& o, std::string key, evolve::RunOptions* run) {
  const ProposerOptions& p = o.proposers;
  Json settings;
  if (run->resume) {
    std::unique_ptr<evolve::Store> store;
    need(evolve::Store::open(run->folder, false, &store));
    settings = store->get("proposers");
  }
  if (p.any()) {
    if (!run->meta.program)
      throw UsageError("--llm and --propose: the run is not that of a program");
    if (settings.is_null()) settings = Json{{"models", Json()}, {"manual", Json()}};
    if (!p.settings.url.empty()) settings["models"] = to_json(settings_of(p));
    if (!p.propose.empty()) settings["manual"] = manual_folder(p.propose[0]);
  }
  if (settings.is_null()) return;
  run->proposers_settings = settings;
  if (!settings.at("models").is_null()) {
    const evolve::ModelSettings models = evolve::model_settings_of(settings["models"]);
    if (!evolve::curl::api().problem.empty())
      throw std::runtime_error("--llm: " + evolve::curl::api().problem);
    if (run->resume) key = key_of(models);
    run->proposers_share = models.share;
    run->proposers.push_back(model_proposer(models, std::move(key), run->meta.seed, interrupted));
  }
  if (!settings.at("manual").is_null()) {
    std::string folder = settings["manual"];
    if (folder.empty()) folder = run->folder + "/manual";
    talk("answers are taken from " + folder);
    run->proposers.push_back(evolve::manual_proposer(folder));
  }
  if (!run->resume && !on_cuda(run->meta))
    run->meta.environment["peak_gflops"] =
        peak_gflops(concurrent_threads(run->meta.threads), kPeakSeconds);
}

}  // namespace attune::cli
