// The problem's fields in one table: emission, hashing, the kernel's key and printed ids follow
// from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/problem.h"

namespace attune {

struct ProblemField {
  const char* name;
  bool in_key;  // kernels are specialised on its value
  int64_t (*get)(const Problem&);
  void (*set)(Problem*, int64_t);
  const char* tag = "";                 // of a flag in printed ids; "": it has no tag of its own
  const char* const* labels = nullptr;  // of the values in emitted source; null: numbers
};
std::span<const ProblemField> problem_fields();

// The part of a problem that a compiled kernel is specialised on. Sizes, window widths and
// alignment stay run-time values: what differs in them only shares one kernel.
Problem kernel_key(const Problem& problem);

// "cpu.attn_fwd.f32.d64.causal", "sm90.attn_fwd.bf16.d128.gqa4".
std::string problem_id(const Problem& problem, const std::string& machine = "cpu");
// Back again, but for the sizes (one group of heads) and the dtype of a bias (fp32). False: the id
// names no problem.
bool parse_problem_id(std::string_view id, Problem* problem);

}  // namespace attune
