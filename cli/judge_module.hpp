// attune judge of a torch module, or of a pair of KernelBench's: the Python package's judge
// decides.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "evolve/store/store.hpp"

namespace attune::cli {

struct ModuleOptions {
  std::string file, reference, device, json, python;
  std::vector<std::string> shapes;
};

bool is_module(const std::string& file);

// What the judge is asked with beside the module's path: the device, and sizes or the reference.
std::vector<std::string> judge_arguments(const ModuleOptions& options);
// Where the package lies beside this tool, in the source tree or installed, Python is told so.
void name_package();

// What Python's judge says of the module with these arguments: the fields of `attune judge --json`.
// None when Ctrl-C stopped it. Throws where there is no Python with torch and the package.
std::optional<evolve::Json> module_verdict(const std::string& python, const std::string& file,
                                           const std::vector<std::string>& arguments);

// The exit code. Throws where there is no Python with torch and the package.
int judge_module(const ModuleOptions& options);

}  // namespace attune::cli
