// Where the tests find the source tree and the tool.
#pragma once

#include <string>

namespace attune {

std::string source_dir();
std::string tool_path();  // under sanitizers, a program with the tool's workers alone

}  // namespace attune
