// The subcommands. Each adds its options and examples to the parser; when it is the one asked for,
// it leaves the work in `run`.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <string>

#include "cli/outcome.hpp"

namespace attune::cli {

// CLI::Range lets NaN pass: it is neither below nor above anything.
inline CLI::Validator in_range(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        const double value = std::strtod(text.c_str(), nullptr);
        if (value >= low && value <= high) return std::string();
        return fmt::format("{} is not in {}..{}", text, low, high);
      },
      fmt::format("in {}..{}", low, high));
}

// --json or --csv: FILE; alone or with "-", stdout. `target` outlives the parser.
inline CLI::Option* add_output(CLI::App* sub, const char* name, std::string& target,
                               const std::string& help) {
  return sub
      ->add_option_function<std::string>(
          name, [&target](const std::string& file) { target = file.empty() ? "-" : file; },
          help + ";\nwithout FILE or with -: to stdout, instead of the text")
      ->expected(0, 1)
      ->type_name("FILE");
}

using Run = std::function<int()>;

void add_info(CLI::App& app, Run& run);
void add_check(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_peak(CLI::App& app, Run& run);
void add_cache(CLI::App& app, Run& run);
void add_evolve(CLI::App& app, Run& run);
void add_judge(CLI::App& app, Run& run);
void add_report(CLI::App& app, Run& run);
void add_tuned(CLI::App& app, Run& run);
void add_worker(CLI::App& app, Run& run);

}  // namespace attune::cli
