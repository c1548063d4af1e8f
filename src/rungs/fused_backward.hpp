// What other rungs of the backward pass take from `fused`: what is not worth tensor cores.
#pragma once

#include "src/rungs/rung.hpp"

namespace attune {

// What every rung of the backward pass refuses.
std::string backward_refusal(const Request& r);
// The states of rows, as kernels/params.h has them; SIZE_MAX stands for more than memory has
// addresses.
size_t state_bytes(const Problem& p);

// The launches that a backward pass has beside dQ, dK and dV: the states of rows, whose kernels
// `unit` of the plan has (kStateEntries), come first. The gradient of sinks, from the same unit,
// and that of the mask, from a unit of its own, come last.
void add_states(const Request& r, size_t unit, Plan* plan);
void add_dsinks(const Request& r, size_t unit, Plan* plan);
void add_dmask(const Request& r, Plan* plan);
// Why one of these launches would be too large; empty: none is.
std::string too_many_rows(const Request& r);

inline constexpr const char* kStateHeader = "tile/backward_rows.h";
inline constexpr Entry kStateEntries[] = {{"attune_states", "backward_states", "kStateThreads"},
                                          {"attune_dsinks", "backward_dsinks", "kSinkThreads"}};

}  // namespace attune
