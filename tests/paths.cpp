#include "tests/paths.hpp"

namespace attune {

std::string source_dir() { return ATTUNE_SOURCE_DIR; }
std::string tool_path() { return ATTUNE_TOOL; }

}  // namespace attune
