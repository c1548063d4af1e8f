// How two texts differ, as people read it.
#pragma once

#include <string>

namespace attune::evolve {

// The lines that differ, with three lines around them: a unified diff. Empty: nothing differs.
std::string unified_diff(const std::string& before, const std::string& after,
                         const std::string& name_before, const std::string& name_after);

}  // namespace attune::evolve
