// Compiler flags that a program may ask for. A comment in its text names them:
//   // attune-flags: -funroll-loops -DTILE=64
#pragma once

#include <string>
#include <vector>

#include "evolve/compile/contract.hpp"

namespace attune::evolve {

// A choice between groups of flags; the first has none.
struct FlagChoice {
  struct Value {
    std::string label, flags;
  };
  std::string name, meaning;
  std::vector<Value> values;
};
// What the search varies for a program on the CPU.
std::vector<FlagChoice> host_flag_choices();

// Whether a program of this language may ask for it; macros are always allowed.
bool is_allowed_flag(const std::string& flag, Language language);

// The comment, as the last line of the text; nothing for no flags.
std::string flags_comment(const std::string& flags);
std::string without_flags_comment(const std::string& text);

// The flags that the text asks for, in order. `refused`: the first that a program may not ask for.
std::vector<std::string> flags_of(const std::string& text, Language language, std::string* refused);

}  // namespace attune::evolve
