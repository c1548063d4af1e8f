// attune check: the kernels against the float64 reference, on this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "src/check/cases.hpp"

namespace attune::cli {
namespace {

using check::Case;
using check::Verdict;
using Json = nlohmann::ordered_json;

struct Options {
  std::string suite = "quick", isa, mode = "auto", filter, json;
  std::string device = "cpu";
  uint32_t seed = 0;
  bool seed_given = false;
  int threads = 0;
};

struct Feature {
  const char* name;
  bool (*has)(const Case&);
};

// A case counts in every row whose feature it has.
constexpr Feature kFeatures[] = {
    {"all", [](const Case&) { return true; }},
    {"causal", [](const Case& c) { return c.problem.causal; }},
    {"window",
     [](const Case& c) {
       return c.problem.window_left != kNoLimit || c.problem.window_right != kNoLimit;
     }},
    {"boolean mask", [](const Case& c) { return c.problem.mask == MaskKind::boolean; }},
    {"additive mask",
     [](const Case& c) {
       return c.problem.mask != MaskKind::none && c.problem.mask != MaskKind::boolean;
     }},
    {"block mask", [](const Case& c) { return c.problem.block_mask_q != 0; }},
    {"grouped heads", [](const Case& c) { return c.problem.heads_q != c.problem.heads_kv; }},
    {"Dv != D", [](const Case& c) { return c.problem.dim_v != c.problem.dim; }},
    {"softcap", [](const Case& c) { return c.problem.softcap; }},
    {"ALiBi", [](const Case& c) { return c.problem.alibi; }},
    {"sinks", [](const Case& c) { return c.problem.sinks; }},
    {"ragged", [](const Case& c) { return c.problem.ragged; }},
    {"dropout", [](const Case& c) { return c.problem.dropout; }},
    {"one query", [](const Case& c) { return c.problem.seq_q == 1; }},
    {"strided", [](const Case& c) { return c.strided; }},
    {"extreme values", [](const Case& c) { return c.fill != check::Fill::normal; }},
};
constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr const char* kDTypeNames[] = {"f32", "f16", "bf16"};

struct Result {
  const Case* test;
  std::string isa;
  Verdict verdict;
};

// How much of the allowed error was used; above 1 is a failure.
double ratio(double error, double limit) {
  if (limit > 0) return error / limit;
  return error == 0 ? 0.0 : INFINITY;
}

double used(const Verdict& v) {
  const double r = std::max(ratio(v.error, v.limit), ratio(v.lse_error, v.lse_limit));
  return std::isnan(r) ? INFINITY : r;
}

// The result of a feature and dtype that came nearest to its limit, or null without one.
const Result* worst_of(const std::vector<Result>& results, const Feature& feature, DType dtype,
                       size_t* count) {
  const Result* worst = nullptr;
  *count = 0;
  for (const Result& r : results) {
    if (r.test->problem.dtype != dtype || !feature.has(*r.test)) continue;
    ++*count;
    if (worst == nullptr || used(r.verdict) > used(worst->verdict)) worst = &r;
  }
  return worst;
}

std::string table(const std::vector<Result>& results) {
  std::string text =
      fmt::format("| {:<14} | {:<5} | {:>5} | {:>9} | {:>9} | {:>11} | {:>9} |\n", "cases with",
                  "dtype", "cases", "error", "limit", "error/limit", "LSE error");
  text += "|:---------------|:------|------:|----------:|----------:|------------:|----------:|\n";
  for (const Feature& feature : kFeatures)
    for (size_t d = 0; d < std::size(kDTypes); ++d) {
      size_t count = 0;
      const Result* worst = worst_of(results, feature, kDTypes[d], &count);
      if (worst == nullptr) continue;
      const Verdict& v = worst->verdict;
      text +=
          fmt::format("| {:<14} | {:<5} | {:>5} | {:>9.2e} | {:>9.2e} | {:>11.2f} | {:>9.2e} |\n",
                      feature.name, kDTypeNames[d], count, v.error, v.limit, used(v), v.lse_error);
    }
  return text;
}

Json to_json(const Result& r) {
  return {{"name", r.test->name()},
          {"isa", r.isa},
          {"error", r.verdict.error},
          {"limit", r.verdict.limit},
          {"ratio", ratio(r.verdict.error, r.verdict.limit)},
          {"lse_error", r.verdict.lse_error},
          {"lse_limit", r.verdict.lse_limit}};
}

Json worst_json(const std::vector<Result>& results) {
  Json list = Json::array();
  for (const Feature& feature : kFeatures)
    for (size_t d = 0; d < std::size(kDTypes); ++d) {
      size_t count = 0;
      const Result* worst = worst_of(results, feature, kDTypes[d], &count);
      if (worst == nullptr) continue;
      Json entry = {{"group", feature.name}, {"dtype", kDTypeNames[d]}, {"group_cases", count}};
      entry.update(to_json(*worst));
      list.push_back(entry);
    }
  return list;
}

attune_mode parse_mode(const std::string& name) {
  return name == "naive" ? ATTUNE_NAIVE : name == "fused" ? ATTUNE_FUSED : ATTUNE_AUTO;
}

std::vector<Case> select_cases(const Options& options, uint32_t seed) {
  std::vector<Case> cases =
      check::suite(options.suite == "full" ? check::Suite::full : check::Suite::quick, seed);
  const size_t all = cases.size();
  std::erase_if(cases,
                [&](const Case& c) { return c.name().find(options.filter) == std::string::npos; });
  if (cases.empty())
    throw UsageError(
        fmt::format("--filter: no case of the {} suite ({} cases) has '{}' in its name",
                    options.suite, all, options.filter));
  return cases;
}

void report_failure(const Result& r) {
  talk(fmt::format("{} {} [{}]: {}", paint(Colour::red, "FAIL"), r.test->name(), r.isa,
                   r.verdict.why));
}

std::string repeat_command(const Options& options, uint32_t seed) {
  std::string command = fmt::format("attune check --suite {} --seed {}", options.suite, seed);
  if (!options.isa.empty()) command += " --isa " + options.isa;
  if (options.mode != "auto") command += " --mode " + options.mode;
  if (!options.filter.empty()) command += fmt::format(" --filter '{}'", options.filter);
  if (options.threads != 0) command += fmt::format(" --threads {}", options.threads);
  return command;
}

int run_check(const Options& options) {
  Output json("--json", options.json);
  const std::vector<std::string> isas = settle_isas(options.isa);
  const uint32_t seed = options.seed_given ? options.seed : std::random_device{}();
  const std::vector<Case> cases = select_cases(options, seed);
  const std::string command = repeat_command(options, seed);
  talk(fmt::format("{} suite, {} cases on {}; repeat with: {}", options.suite,
                   cases.size() * isas.size(), fmt::join(isas, ", "), command));

  const auto begin = std::chrono::steady_clock::now();
  std::vector<Result> results;
  std::vector<const Result*> failed;
  results.reserve(cases.size() * isas.size());
  {
    Progress progress(static_cast<int64_t>(cases.size() * isas.size()));
    for (const std::string& isa : isas) {
      use_isa(isa);
      for (const Case& c : cases) {
        if (interrupted()) break;
        progress.step(c.name());
        results.push_back(
            {&c, isa, check::run_case_api(c, options.threads, parse_mode(options.mode))});
        if (!results.back().verdict.ok) failed.push_back(&results.back());
      }
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  for (const Result* r : failed) report_failure(*r);
  if (!json.is_stdout()) print(table(results));
  Json failures = Json::array();
  for (const Result* r : failed) {
    Json entry = to_json(*r);
    entry["why"] = r->verdict.why;
    failures.push_back(entry);
  }
  json.write(Json{{"cases", results.size()},
                  {"failures", failed.size()},
                  {"worst", worst_json(results)},
                  {"failed", failures},
                  {"seconds", seconds},
                  {"suite", options.suite},
                  {"mode", options.mode},
                  {"isa", isas},
                  {"seed", seed},
                  {"interrupted", interrupted()}}
                 .dump(2) +
             "\n");

  const bool good = failed.empty();
  talk(fmt::format("{}: {} cases, {} failures, {:.1f} s{}",
                   good ? paint(Colour::green, "ok") : paint(Colour::red, "FAILED"), results.size(),
                   failed.size(), seconds, interrupted() ? ", interrupted" : ""));
  if (!good) talk(fmt::format("repeat with: {}", command));
  if (interrupted()) return kInterrupted;
  return good ? kOk : kFailed;
}

}  // namespace

void add_check(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "check", "Compare every kernel with the float64 reference on this machine");
  sub->add_option("--device", options->device, "Where to run")
      ->check(CLI::IsMember({"cpu"}))
      ->capture_default_str();
  sub->add_option("--suite", options->suite, "quick: seconds; full: every feature, shape and dtype")
      ->check(CLI::IsMember({"quick", "full"}))
      ->capture_default_str();
  sub->add_option("--isa", options->isa, "Instruction sets: names from `attune info`, or all")
      ->type_name("NAME,...|all");
  sub->add_option("--mode", options->mode, "Which rung computes")
      ->check(CLI::IsMember({"auto", "naive", "fused"}))
      ->capture_default_str();
  sub->add_option("--filter", options->filter, "Only cases with TEXT in their name")
      ->type_name("TEXT");
  CLI::Option* seed =
      sub->add_option("--seed", options->seed, "Seed of shapes and data; a fresh one by default");
  sub->add_option("--threads", options->threads, "0: all usable ones")
      ->check(CLI::Range(0, kMostThreads));
  sub->add_option("--json", options->json, "Write the result as JSON to FILE, or - for stdout")
      ->type_name("FILE|-");
  sub->footer(
      R"(A case fails when its error is more than twice that of plain float32 loops on the same data, both
against float64; or when it wrote outside its output, changed its input, or gave NaN. The table shows,
by feature and dtype, the case that came nearest to its limit. Exit code 1 when a case failed.

Examples:
  attune check
  attune check --suite full --isa all --json result.json
  attune check --seed 42 --filter causal
  attune check --suite full --json - | jq .failures)");
  sub->callback([options, seed, &run] {
    options->seed_given = seed->count() > 0;
    run = [options] { return run_check(*options); };
  });
}

}  // namespace attune::cli
