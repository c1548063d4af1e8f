// attune peak: the multiply-add rate that percentages are taken of.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/terminal.hpp"
#include "src/cpu/fused.hpp"

namespace attune::cli {
namespace {

struct Options {
  std::string isa, json;
  int threads = 0;
  double seconds = 0.5;
};

int peak(const Options& options) {
  Output json("--json", options.json);
  const std::vector<std::string> isas = settle_isas(options.isa);
  if (isas.size() != 1)
    throw UsageError(fmt::format("--isa: one instruction set at a time, not '{}'", options.isa));
  use_isa(isas.front());
  const int wanted = settle_threads(options.threads);
  const int threads = concurrent_threads(wanted);
  if (threads < wanted)
    talk(
        fmt::format("{} threads measured, not {}: no more processors are usable", threads, wanted));
  const double gflops = peak_gflops(threads, options.seconds);
  if (!json.is_stdout()) print(fmt::format("{:.1f} GFLOP/s\n", gflops));
  json.write(nlohmann::ordered_json{{"peak_gflops", gflops},
                                    {"threads", threads},
                                    {"isa", cpu::isa_name()},
                                    {"seconds", options.seconds}}
                 .dump() +
             "\n");
  return interrupted() ? kInterrupted : kOk;
}

}  // namespace

void add_peak(CLI::App& app, Run& run) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("peak", "Measure the highest multiply-add rate that the CPU reaches");
  sub->add_option("--threads", options->threads,
                  "Threads, at most one for each processor; 0 (default): all")
      ->check(CLI::Range(0, kMostThreads));
  sub->add_option("--seconds", options->seconds, "Seconds to measure")
      ->check(in_range(0.001, 60.0))
      ->capture_default_str();
  sub->add_option("--isa", options->isa,
                  "Instruction set: a name from `attune info`. Default: the best one");
  add_output(sub, "--json", options->json, "Write the result as JSON to FILE");
  sub->footer(
      R"(Every thread runs fused multiply-adds on registers only, without loads or stores. No kernel can be
faster than the sum of their rates. It depends on the clock and on what else runs on the machine, so
measure it together with what you compare with it. `attune bench` does.

Examples:
  attune peak
  attune peak --threads 1 --seconds 2 --json)");
  sub->callback([options, &run] { run = [options] { return peak(*options); }; });
}

}  // namespace attune::cli
