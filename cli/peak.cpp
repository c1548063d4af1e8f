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
  CLI::App* sub = app.add_subcommand("peak", "Measure the fused multiply-add rate of this machine");
  sub->add_option("--threads", options->threads,
                  "Threads that run at once, at most one a processor; 0: all usable ones")
      ->check(CLI::Range(0, kMostThreads));
  sub->add_option("--seconds", options->seconds, "How long to measure")
      ->check(in_range(0.001, 60.0))
      ->capture_default_str();
  sub->add_option("--isa", options->isa, "Instruction set, as `attune info` names them");
  add_output(sub, "--json", options->json, "Write the result as JSON to FILE");
  sub->footer(
      R"(Every thread runs independent multiply-adds on registers alone; the sum is the ceiling of any
kernel that multiplies matrices, for the clock and the neighbours of this moment.

Examples:
  attune peak
  attune peak --threads 1 --seconds 2 --json -)");
  sub->callback([options, &run] { run = [options] { return peak(*options); }; });
}

}  // namespace attune::cli
