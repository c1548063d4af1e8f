// attune judge --self-test: every known way to deceive a judge, and whether it is refused.
#pragma once

#include <string>

namespace attune::cli {

struct SelfTestOptions {
  std::string device, json, python;
  bool modules = false;  // those of torch modules, in the place of programs
};

// The exit code: ok when each fixture got a verdict that is expected of it.
int self_test(const SelfTestOptions& options);

}  // namespace attune::cli
