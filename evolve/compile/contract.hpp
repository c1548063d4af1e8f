// The contracts of programs: which function a program's text defines, and what joins it to
// candidate.h.
//
// attune_candidate: candidate.h, all that it describes.
// run_attention:    one function with plain arguments. Q, K, V and O are contiguous [B][H][S][D],
//                   the scale is 1/sqrt(D), causal means key j <= i, and one thread computes.
//   C++:  extern "C" void run_attention(const float* Q, const float* K, const float* V, float* O,
//             int batch, int heads, int seq_len, int head_dim, bool causal)
//         It is asked for every head_dim that is a multiple of 8, up to 256.
//   CUDA: the same with half instead of float, and a last argument: cudaStream_t stream
//         All work goes into the stream. It is asked for the head_dim of the timed shapes alone.
// attune_candidate_backward: the backward pass of candidate.h, of programs for the CPU.
#pragma once

#include <string>
#include <string_view>

#include "kernels/problem.h"

namespace attune::evolve {

enum class Contract { none, candidate, run_attention, backward };
const char* contract_name(Contract contract);  // "none", or the function

enum class Language { cpp, cuda };

// What the text defines, outside of comments, strings and directives. attune_candidate counts first
// when there are both, and also where a macro may define it: then the linker decides. The backward
// pass is the contract of a program that has no other.
Contract contract_of(std::string_view source);
// The same for a pass: none where the program does not have it.
Contract contract_of(std::string_view source, Pass pass);

// A header that is included behind a program of run_attention: it defines attune_candidate by a
// call of it, and names the signature where that differs.
inline constexpr const char* kAdapterFile = "run_attention.h";
std::string adapter_text(Language language);

// The program with the line that includes the adapter, where its contract needs one. The lines of
// the program keep their numbers.
std::string with_adapter(const std::string& source, Contract contract);

// What is said of a program without an entry point. It names both contracts.
std::string no_entry_text(Language language);

// What run_attention has no argument for; nullptr: it can compute the problem.
const char* beyond_run_attention(const Problem& problem, Language language);

}  // namespace attune::evolve
