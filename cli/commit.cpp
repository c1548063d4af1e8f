#include "cli/commit.hpp"

#include <attune_commit.hpp>  // made by the build

namespace attune::cli {

std::string build_commit() { return ATTUNE_COMMIT; }

}  // namespace attune::cli
