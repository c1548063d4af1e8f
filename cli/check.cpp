// attune check: the kernels against the float64 reference, on this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/names.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "src/check/cases.hpp"
#include "src/check/cuda_cases.hpp"
#include "src/cuda/device.hpp"
#include "src/jit/kernel.hpp"
#include "src/rungs/rung.hpp"
#include "src/select/select.hpp"

namespace attune::cli {
namespace {

using check::Case;
using check::Verdict;
using Json = nlohmann::ordered_json;

struct Options {
  std::string suite = "quick", isa, mode = "auto", filter, json;
  std::string device = "cpu", pass = "forward";
  std::string seed;  // empty: a fresh one
  int threads = 0, jobs = 0;
  bool user_code = false;

  bool cuda() const { return device == "cuda"; }
  bool backward() const { return pass == "backward"; }
  Pass which() const { return backward() ? Pass::backward : Pass::forward; }
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
    {"key lengths", [](const Case& c) { return c.problem.key_lengths; }},
    {"dropout", [](const Case& c) { return c.problem.dropout; }},
    {"one query", [](const Case& c) { return c.problem.seq_q == 1; }},
    {"strided", [](const Case& c) { return c.strided; }},
    {"strides <= 0", [](const Case& c) { return c.backwards || c.repeated; }},
    {"extreme values", [](const Case& c) { return c.fill != check::Fill::normal; }},
};

struct Result {
  const Case* test;
  std::string isa;  // CUDA: the rung
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
    for (const Named<DType>& dtype : kDTypes) {
      size_t count = 0;
      const Result* worst = worst_of(results, feature, dtype.value, &count);
      if (worst == nullptr) continue;
      const Verdict& v = worst->verdict;
      text +=
          fmt::format("| {:<14} | {:<5} | {:>5} | {:>9.2e} | {:>9.2e} | {:>11.2f} | {:>9.2e} |\n",
                      feature.name, dtype.name, count, v.error, v.limit, used(v), v.lse_error);
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
    for (const Named<DType>& dtype : kDTypes) {
      size_t count = 0;
      const Result* worst = worst_of(results, feature, dtype.value, &count);
      if (worst == nullptr) continue;
      Json entry = {{"group", feature.name}, {"dtype", dtype.name}, {"group_cases", count}};
      entry.update(to_json(*worst));
      list.push_back(entry);
    }
  return list;
}

attune_mode parse_mode(const std::string& name) {
  const Rung* rung = rung_named(name);
  return rung != nullptr ? rung->mode : ATTUNE_AUTO;
}

// Options of the other device are mistakes.
void must_fit_device(const Options& o) {
  const auto refuse = [&](const char* option) {
    throw UsageError(fmt::format("{} does not go with --device {}", option, o.device));
  };
  if (o.cuda() && !o.isa.empty()) refuse("--isa");
  if (o.cuda() && o.threads != 0) refuse("--threads (--jobs does)");
  if (!o.cuda() && o.jobs != 0) refuse("--jobs (--threads does)");
  if (!o.cuda() && o.user_code) refuse("--user-code");
  const bool anywhere = o.mode == "auto" || o.mode == "naive" || o.mode == "fused";
  if (!o.cuda() && !anywhere) refuse(fmt::format("--mode {}", o.mode).c_str());
  if (o.backward() && o.user_code) throw UsageError("--user-code does not go with --pass backward");
  if (o.backward() && o.mode != "auto" && o.mode != "all" &&
      rung_named(o.mode, Pass::backward) == nullptr)
    throw UsageError(fmt::format("--mode {} does not go with --pass backward", o.mode));
}

// The device that the rungs run on; its modes by name.
std::vector<attune_mode> settle_rungs(const Options& o) {
  const cuda::Device device = cuda_device();
  if (o.mode == "all") return check::cuda_rungs(device.arch.cc, o.which());
  return {parse_mode(o.mode)};
}

// What --mode takes: the CUDA rungs, which have those of the CPU among them.
std::vector<std::string> mode_words() {
  std::vector<std::string> words = {"auto"};
  for (const Rung* rung : rungs()) words.emplace_back(rung->name);
  words.emplace_back("all");
  return words;
}

std::vector<Case> select_cases(const Options& options, uint64_t seed) {
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

std::string summary_of(const std::vector<Result>& results, const std::string& variant) {
  size_t count = 0, failures = 0;
  double worst = 0;
  for (const Result& r : results) {
    if (r.isa != variant) continue;
    ++count;
    failures += !r.verdict.ok;
    worst = std::max(worst, used(r.verdict));
  }
  return fmt::format("{}: {} cases, {} failures, at most {:.2f} of what is allowed", variant, count,
                     failures, worst);
}

std::string repeat_command(const Options& options, uint64_t seed) {
  std::string command = fmt::format("attune check --suite {} --seed {}", options.suite, seed);
  if (options.cuda()) command += " --device cuda";
  if (options.backward()) command += " --pass backward";
  if (options.user_code) command += " --user-code";
  if (!options.isa.empty()) command += " --isa " + options.isa;
  if (options.mode != "auto") command += " --mode " + options.mode;
  if (!options.filter.empty()) command += fmt::format(" --filter '{}'", options.filter);
  if (options.threads != 0) command += fmt::format(" --threads {}", options.threads);
  return command;
}

std::vector<Result> check_on_cpu(const Options& options, const std::vector<Case>& cases,
                                 const std::vector<std::string>& isas) {
  std::vector<Result> results;
  Progress progress(static_cast<int64_t>(cases.size() * isas.size()));
  for (const std::string& isa : isas) {
    use_isa(isa);
    for (const Case& c : cases) {
      if (interrupted()) return results;
      progress.step(c.name());
      const auto run = options.backward() ? check::run_gradients_api : check::run_case_api;
      results.push_back({&c, isa, run(c, options.threads, parse_mode(options.mode))});
    }
  }
  return results;
}

std::atomic<int> g_compiled{0};  // kernels: too many to name each

// The jobs compile kernels and compute references at once; on the device they take turns.
std::vector<Result> check_on_cuda(const Options& options, const std::vector<Case>& cases,
                                  const std::vector<attune_mode>& rungs) {
  check::CudaOptions how;
  how.as_user_code = options.user_code;
  how.repeat = true;
  jit::on_compile([](const std::string&) { ++g_compiled; });
  std::vector<std::vector<Verdict>> verdicts(cases.size());
  std::atomic<size_t> next{0};
  std::mutex talking;
  Progress progress(static_cast<int64_t>(cases.size()));
  const auto work = [&] {
    for (size_t n = next++; n < cases.size() && !interrupted(); n = next++) {
      {
        const std::lock_guard<std::mutex> lock(talking);
        progress.step(cases[n].name());
      }
      verdicts[n] = options.backward() ? check::run_gradients_cuda(cases[n], rungs, how)
                                       : check::run_case_cuda(cases[n], rungs, how);
    }
  };
  std::vector<std::thread> threads;
  for (int job = 1; job < settle_threads(options.jobs); ++job) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  talk(fmt::format("{} kernels compiled", g_compiled.load()));

  std::vector<Result> results;
  for (size_t rung = 0; rung < rungs.size(); ++rung)
    for (size_t n = 0; n < cases.size(); ++n)
      if (!verdicts[n].empty())
        results.push_back({&cases[n], mode_name(rungs[rung]), verdicts[n][rung]});
  return results;
}

int run_check(const Options& options) {
  must_fit_device(options);
  Output json("--json", options.json);
  std::vector<attune_mode> rungs;
  std::vector<std::string> variants;  // instruction sets, or rungs
  if (options.cuda()) {
    rungs = settle_rungs(options);
    for (attune_mode rung : rungs) variants.emplace_back(mode_name(rung));
  } else {
    variants = settle_isas(options.isa);
  }
  const uint64_t seed = settle_seed(options.seed);
  const std::vector<Case> cases = select_cases(options, seed);
  const std::string command = repeat_command(options, seed);
  talk(fmt::format("{} suite, {} cases on {}; repeat with: {}", options.suite,
                   cases.size() * variants.size(), fmt::join(variants, ", "), command));

  const auto begin = std::chrono::steady_clock::now();
  std::vector<Result> results = options.cuda() ? check_on_cuda(options, cases, rungs)
                                               : check_on_cpu(options, cases, variants);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  // Tensor cores, asked for by name, may say that they cannot run a case: that is neither right nor
  // wrong, and it is named. No other rung may.
  Json refused = Json::array();
  std::erase_if(results, [&](const Result& r) {
    const Rung* rung = rung_named(r.isa, options.which());
    if (r.verdict.status != ATTUNE_UNSUPPORTED || rung == nullptr || !rung->tensor_cores)
      return false;
    refused.push_back({{"name", r.test->name()}, {"isa", r.isa}, {"why", r.verdict.why}});
    return true;
  });
  std::vector<const Result*> failed;
  for (const Result& r : results)
    if (!r.verdict.ok) failed.push_back(&r);

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
                  {"refused", refused},
                  {"seconds", seconds},
                  {"suite", options.suite},
                  {"device", options.device},
                  {"pass", options.pass},
                  {"mode", options.mode},
                  {"isa", variants},
                  {"seed", seed},
                  {"interrupted", interrupted()}}
                 .dump(2) +
             "\n");

  if (variants.size() > 1)
    for (const std::string& variant : variants) talk(summary_of(results, variant));
  if (!refused.empty())
    talk(fmt::format("{} refused, for instance {}: {}", refused.size(),
                     refused[0]["name"].get<std::string>(), refused[0]["why"].get<std::string>()));
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
  CLI::App* sub =
      app.add_subcommand("check", "Test the kernels on this machine against a float64 reference");
  sub->add_option("--device", options->device, "The device that computes")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  sub->add_option("--suite", options->suite,
                  "quick: about 300 cases, a few seconds; full: thousands, minutes")
      ->check(CLI::IsMember({"quick", "full"}))
      ->capture_default_str();
  sub->add_option("--pass", options->pass, "backward: the gradients")
      ->check(CLI::IsMember({"forward", "backward"}))
      ->capture_default_str();
  sub->add_option("--isa", options->isa,
                  "CPU instruction sets to test: names from `attune info`, or all.\n"
                  "Default: the best one")
      ->type_name("NAME,...|all");
  sub->add_option("--mode", options->mode,
                  "The kernel to test. auto: the library's own choice. tiled, mma, wgmma\n"
                  "and all (each kernel in turn) need --device cuda")
      ->check(CLI::IsMember(mode_words()))
      ->capture_default_str();
  sub->add_option("--filter", options->filter, "Run only the cases whose name contains TEXT")
      ->type_name("TEXT");
  sub->add_option("--seed", options->seed,
                  "Seed of the shapes and the data, 0 to 2^64-1. Default: a new one")
      ->type_name("N");
  sub->add_option("--threads", options->threads, "CPU threads; 0 (default): all")
      ->check(CLI::Range(0, kMostThreads));
  sub->add_option("--jobs", options->jobs,
                  "CUDA: how many cases the host prepares at the same time;\n"
                  "0 (default): one for each CPU thread")
      ->check(CLI::Range(0, kMostThreads));
  sub->add_flag("--user-code", options->user_code,
                "CUDA: express causal, window, ALiBi, softcap and boolean masks as\n"
                "score_mod and mask_mod, and test those");
  add_output(sub, "--json", options->json, "Write the result as JSON to FILE");
  sub->footer(
      R"(Each case is a random shape with random features and inputs. Its result is compared with a float64
reference. A case fails
  - when its error is more than twice the error of plain float32 loops on the same data (on tensor
    cores, 16-bit problems may also round their weights to 16 bits);
  - when it gives NaN, writes outside its output or changes its input;
  - on CUDA, when a second run gives different bits.
A gradient may be off by what the roundings of its terms can come to, and by that of its dtype.
The table shows, for each feature and dtype, the case that is closest to its limit. The exit code is
1 when a case failed. The seed is printed, so that a failure can be repeated.

Examples:
  attune check
  attune check --suite full --isa all --json result.json
  attune check --pass backward --suite full
  attune check --seed 42 --filter causal
  attune check --device cuda --suite full --mode all
  attune check --device cuda --pass backward
  attune check --suite full --json | jq .failures)");
  sub->callback([options, &run] { run = [options] { return run_check(*options); }; });
}

}  // namespace attune::cli
