// What is compiled, for a person to read: source, headers, cubin and the compiler's words go to the
// folder that ATTUNE_DUMP_DIR names.
#pragma once

#include <string>
#include <string_view>

#include "src/jit/sha256.hpp"

namespace attune::jit {

std::string dump_dir();  // empty: nothing is dumped

// Writes what is not empty. A folder that cannot be written is no error of the call.
void dump(const std::string& id, const Digest& key, std::string_view source, std::string_view cubin,
          std::string_view log);

}  // namespace attune::jit
