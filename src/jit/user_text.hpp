// The caller's code, before it becomes part of a kernel.
#pragma once

#include <string>
#include <string_view>

namespace attune::jit {

// Why a text cannot be the body of score_mod or mask_mod, with the number of its line ("line 2:
// ..."); empty: it can. The text must stay inside its function and need nothing but itself, so that
// its bytes are all that the kernel's name on disk has to cover: no preprocessor directive but
// #pragma unroll, braces that balance, and no comment or literal without an end. What the compiler
// refuses by itself is not looked at.
std::string why_not_a_body(std::string_view text);

}  // namespace attune::jit
