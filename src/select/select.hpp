// How a problem is computed: which rung, and with which config.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/problem.h"
#include "src/cpu/config.hpp"
#include "src/problem.hpp"
#include "src/status.hpp"

namespace attune {

namespace cpu {
struct IsaTable;  // src/cpu/fused_task.hpp
}

// One rung that was considered: chosen, or why not.
struct Candidate {
  attune_mode mode;
  std::string id;                             // "cpu.attn_fwd.f32.d64.causal/mr6.nv4..."
  std::string reason;                         // empty for the chosen one
  std::string config_from = "";               // "default", or which tuned row; empty: no config
  std::vector<std::string> passed_over = {};  // tuned rows that are near, and why not they
};

// What a call on the CPU runs.
struct CpuChoice {
  attune_mode mode = ATTUNE_FUSED;
  // When mode is ATTUNE_FUSED. A tuned row may name another instruction set than the one in use.
  cpu::CpuConfig config;
  const cpu::IsaTable* isa = nullptr;

  bool operator==(const CpuChoice&) const = default;
};

struct Choice : CpuChoice {
  std::vector<Candidate> candidates;
};

// Never falls back silently: a rung that was asked for by name runs or the status says why it
// cannot.
Status select(const Problem& problem, attune_mode mode, int threads, Choice* choice);

// What select chooses, without its reasons. A thread keeps its last answer, since the layers of a
// model ask the same again: such a call takes no memory.
Status select_quickly(const Problem& problem, attune_mode mode, int threads, CpuChoice* choice);

// The same of a backward pass; results_given: out and lse of the forward pass are.
Status select_backward(const Problem& problem, bool results_given, attune_mode mode,
                       Choice* choice);

// The config that the library would use for the fused rung without a tuned table: a pure function
// of problem, machine and thread count.
cpu::CpuConfig default_cpu_config(const Problem& problem, const cpu::CpuArch& arch, int threads);
// The same of the backward pass.
cpu::CpuConfig default_backward_config(const Problem& problem, const cpu::CpuArch& arch);

// Why no tuned row may serve the call; empty when one may.
std::string why_untuned(const Problem& problem);

const char* mode_name(attune_mode mode);
attune_mode last_mode();  // the highest number of a mode

}  // namespace attune
