// The subcommands. Each adds its options and examples to the parser; when it is the one asked for,
// it leaves the work in `run`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

namespace attune::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;  // failures found, or a run-time error
inline constexpr int kUsage = 2;
inline constexpr int kInterrupted = 130;

// What the parser cannot see: options that are well-formed but do not fit together.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Run = std::function<int()>;

void add_info(CLI::App& app, Run& run);
void add_check(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_peak(CLI::App& app, Run& run);

}  // namespace attune::cli
