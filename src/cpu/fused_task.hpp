// What fused.cpp hands to the code of each instruction set: a call, and a task of it.
#pragma once

#include "kernels/params.h"
#include "src/cpu/config.hpp"

namespace attune::cpu {

// Rows [row0, row0 + rows) of `heads` neighbouring query heads of one K/V head, over keys
// [key_begin, key_end).
struct Task {
  int64_t batch, head_kv;
  int64_t head0, heads;  // query heads
  int64_t row0, rows;
  int64_t key_begin, key_end;
  bool few_rows;   // the whole sequence is a few rows: K and V are read in place, not packed
  float* partial;  // null: finish and write out. Else (split-KV) leave accumulators, sums and
                   // maxima here.

  int64_t total_rows() const { return heads * rows; }
};

struct FusedCall {
  const Problem& problem;
  const Params& params;
  const CpuConfig& config;
};

struct BackwardTable;  // src/cpu/backward_task.hpp

// One instruction set's entry points.
struct IsaTable {
  CpuArch arch;
  // Bytes of scratch that a task of so many rows needs.
  size_t (*scratch_bytes)(const FusedCall& call, int64_t rows);
  void (*run)(const FusedCall& call, const Task& task, void* scratch);
  // Adds up the partial results of the same rows over `splits` tasks and writes them out.
  void (*combine)(const FusedCall& call, const Task* tasks, int splits, void* scratch);
  size_t (*partial_floats)(const FusedCall& call, int64_t rows);
  double (*peak_flops)(double seconds);
  const BackwardTable* (*backward)();  // null: a table of the forward pass alone
};

}  // namespace attune::cpu
