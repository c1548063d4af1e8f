// How a subcommand ends. Apart from commands.hpp, whose parser takes seconds to compile.
#pragma once

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

}  // namespace attune::cli
