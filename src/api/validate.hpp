// From the caller's arguments to Problem and Params, or to the reason why not.
#pragma once

#include <array>
#include <cstddef>

#include "kernels/params.h"
#include "src/cpu/pool.hpp"
#include "src/status.hpp"

namespace attune {

// One argument's memory: its first byte, and how many lie between that and its last.
struct Place {
  const char* name;
  const void* address;
  uint64_t bytes;
};
inline constexpr size_t kMostPlaces = 20;

// Which gradients a backward call asks for, beside the mask's, whose shape says so.
struct Asked {
  bool dq = false, dk = false, dv = false, dsinks = false;
};

struct Call {
  Problem problem;
  Params params;
  GradParams grads;  // of a backward pass
  Asked asked;       // likewise
  attune_device device = ATTUNE_CPU;
  cpu::Executor executor;  // CPU
  attune_mode mode = ATTUNE_AUTO;
  bool empty = false;                     // no output element: nothing to do
  bool results_given = false;             // out and lse are: what a fast backward pass reads
  bool shapes_only = false;               // a tensor with elements has no memory
  double scale_f64 = 0, softcap_f64 = 0;  // of a call in float64

  // CUDA. What lies behind a pointer is device memory: no check reads it.
  void* stream = nullptr;
  size_t workspace_bytes = 0;  // behind params.workspace
  const char* score_mod = nullptr;
  const char* mask_mod = nullptr;
  // Every tensor that has bytes, and the workspace.
  std::array<Place, kMostPlaces> places = {};
  int place_count = 0;
};

enum class Pointers { required, optional };  // optional: shapes alone are enough (explain)

// Checks every argument before any work. Copies the struct by its struct_size, so that older and
// newer callers are both served.
Status make_call(const attune_args* args, Pointers pointers, Call* call);
Status make_backward_call(const attune_backward_args* args, Pointers pointers, Call* call);

// A workspace for a call that was checked without one: it goes into params, and its place into
// places. Overlaps count by first and last byte here.
Status give_workspace(void* workspace, size_t bytes, Call* call);

}  // namespace attune
