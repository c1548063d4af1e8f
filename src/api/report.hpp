// What the library says about itself and about a call, as JSON.
#pragma once

#include <string>

#include "src/api/validate.hpp"
#include "src/select/select.hpp"
#include "src/status.hpp"

namespace attune {

// Which kernel the call would run, and why every other one would not.
Status explain_json(const Call& call, std::string* json);

// Versions, instruction sets, threads, backends and caches of this machine.
std::string info_json();
}  // namespace attune
