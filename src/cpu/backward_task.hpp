// What fused_backward.cpp hands to the code of each instruction set: a backward call, and its
// tasks.
#pragma once

#include <algorithm>

#include "src/cpu/fused_task.hpp"

namespace attune::cpu {

// What the first step finds out of each row. A key weighs weight * 2^((score - shift) * scale).
struct RowState {
  float shift, weight;  // weight 0: no key
  float delta;          // sum of P * dP, less the gradient of LSE
};

struct BackwardCall {
  FusedCall forward;
  const GradParams& grads;
  RowState* states;  // [b][h][i]

  RowState* row_states(int64_t b, int64_t h) const {
    const Problem& p = forward.problem;
    return states + (b * p.heads_q + h) * p.seq_q;
  }
};

// Rows [row0, row0 + rows) of `heads` neighbouring query heads of one K/V head.
struct RowBlock {
  int64_t head0, heads, row0, rows;

  int64_t total() const { return heads * rows; }
};

// How the rows of all query heads of one K/V head become blocks: of one head, or, while sequences
// are short, of several whole heads.
struct RowBlocks {
  int64_t group, sq;    // heads, and rows of each
  int64_t heads, rows;  // of a block, at most

  static RowBlocks of(const Problem& p, const CpuConfig& c, int64_t sq) {
    if (sq == 0) return {p.group(), 0, 1, 1};
    if (sq <= c.block_q / 2) return {p.group(), sq, std::min(c.block_q / sq, p.group()), sq};
    const int64_t even = ceil_div(sq, ceil_div(sq, c.block_q));
    return {p.group(), sq, 1, std::min(sq, ceil_div(even, c.mr) * c.mr)};
  }
  int64_t of_head() const { return ceil_div(sq, rows); }
  int64_t count() const { return sq == 0 ? 0 : ceil_div(group, heads) * of_head(); }
  // Heads count from the group's first. Block after block covers row after row, head after head.
  RowBlock at(int64_t n) const {
    const int64_t head = n / of_head() * heads, row = n % of_head() * rows;
    return {head, std::min(heads, group - head), row, std::min(rows, sq - row)};
  }
  // The first row of block n, over all heads.
  int64_t first_row(int64_t n) const {
    return n == count() ? group * sq : at(n).head0 * sq + at(n).row0;
  }
};

// The states of rows [row0, row0 + rows) of one query head, and their part of its sink's gradient.
struct StateTask {
  int64_t batch, head, row0, rows;
  double dsink;
};

// dQ of some blocks of rows, from some keys, and dK and dV of these keys, from these rows.
struct GradientTask {
  int64_t batch, head_kv;
  int64_t block_begin, block_end;
  int64_t key_begin, key_end;
  int64_t clear_end;  // the keys from key_end to here are not used: their gradients are 0
  float* dq;          // not null: dQ of all rows of the group is left here, to be merged
  float* dkv;         // not null: dK and dV of all keys are left here
};

// Adds up the parts of dQ (rows of all heads of the group) or of dK and dV (keys), and writes them.
struct MergeTask {
  int64_t batch, head_kv;
  bool keys;  // dK and dV, not dQ
  int64_t begin, end;
  const float* parts;
  int64_t count, size;  // of parts, and of one of them
};

// Elements [i0, i1) x [j0, j1) of dmask, for one b and h of its own.
struct MaskTask {
  int64_t b, h, i0, i1, j0, j1;
};

// One instruction set's entry points. Bytes of scratch come before what needs them.
struct BackwardTable {
  size_t (*state_bytes)(const BackwardCall& call);
  void (*find_states)(const BackwardCall& call, StateTask* task, void* scratch);
  size_t (*gradient_bytes)(const BackwardCall& call, const GradientTask& task);
  void (*gradients)(const BackwardCall& call, const GradientTask& task, void* scratch);
  size_t (*mask_bytes)(const BackwardCall& call, const MaskTask& task);
  void (*mask)(const BackwardCall& call, const MaskTask& task, void* scratch);
  void (*merge)(const BackwardCall& call, const MergeTask& task, void* scratch);
  // Floats of dQ of a row, and of dK and dV of a key, in parts.
  int64_t (*dq_floats)(const BackwardCall& call);
  int64_t (*dkv_floats)(const BackwardCall& call);
};

}  // namespace attune::cpu
