// The fused CPU kernel: FlashAttention tiling, Highway vectors, run-time dispatch over instruction
// sets.
#pragma once

#include <string>
#include <vector>

#include "kernels/params.h"
#include "src/cpu/config.hpp"
#include "src/cpu/pool.hpp"
#include "src/status.hpp"

namespace attune::cpu {

// Precondition: invalid_reason(config, problem, arch()) is empty. Fails only for want of memory.
Status fused_forward(const Problem& problem, const Params& params, const CpuConfig& config,
                     const Executor& executor);

// The same with the entry points of another instruction set, or of a register tile that is not
// built in (fused_task.hpp). The config is valid for its arch.
struct IsaTable;
Status fused_forward(const IsaTable& table, const Problem& problem, const Params& params,
                     const CpuConfig& config, const Executor& executor);

// The instruction set in use, as Highway names it ("AVX3", "AVX2", "SSE4", "NEON"), its shape, and
// its entry points: another set has others.
std::string isa_name();
const IsaTable* isa_table();
CpuArch arch();

// The entry points of another set that runs here, by its name, and back; nullptr: there is none.
const IsaTable* isa_table(const std::string& name);
std::string isa_name(const IsaTable* table);

// Every instruction set that is compiled in and runs here, best first. force_isa("") goes back to
// the best. Process-wide, for tests, benchmarks and debugging; false when the name is not in the
// list.
std::vector<std::string> isa_names();
bool force_isa(const std::string& name);

// Fused multiply-adds of one thread per second, times two: the peak that benchmarks print
// percentages of. Runs for about `seconds`.
double measure_peak_flops(double seconds);

}  // namespace attune::cpu
