// The winner as a program of its own: attention with its config, through the library's public
// API on a CPU, and as the kernels themselves on a GPU.
#pragma once

#include <string>

#include "evolve/report/report_view.hpp"

namespace attune::evolve {

// One line that cannot leave its comment.
std::string comment_text(const std::string& text);
std::string literal_text(const std::string& text);  // in quotes

// Whether a call of the library can run the best: its register tile is built in.
bool library_runs(const RunView& view);

// The whole program but for its heading; only where library_runs().
std::string library_program(const RunView& view);

// The same for a run on a GPU: its kernels as one CUDA file that needs no other.
bool kernel_runs(const RunView& view);
std::string kernel_program(const RunView& view);

}  // namespace attune::evolve
