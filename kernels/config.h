// What the configs of CUDA kernels share. A config says how a kernel computes: one aggregate in the
// config.h of each kernel folder, shared by host, optimiser and kernel. Each has one
// invalid_reason, which the host asks before it compiles and the kernel's static_assert asks again.
#pragma once

#include "arch.h"
#include "problem.h"

namespace attune {

constexpr int element_bytes(DType dtype) {
  return dtype == DType::f32 || dtype == DType::i32 ? 4 : dtype == DType::boolean ? 1 : 2;
}
constexpr int element_bytes(MaskKind kind) {
  return kind == MaskKind::none ? 0 : kind == MaskKind::boolean ? 1 : kind == MaskKind::f32 ? 4 : 2;
}

constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }

// The bytes of one element as the tensor cores take it: fp32 comes as two fp16, hi and lo.
constexpr int operand_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// How much more than causal limit, window and lengths is computed element by element.
constexpr int features_of(const Problem& p) {
  return int(p.softcap) + int(p.mask != MaskKind::none) + int(p.alibi) + int(p.score_mod) +
         int(p.mask_mod) + 4 * int(p.block_mask_q != 0) + 4 * int(p.dropout);
}

constexpr int kSplitThreads = 256;  // of a kernel that splits fp32 operands

// Of the kernels of a backward pass that go through rows alone (tile/backward_rows.h).
constexpr int kStateRows = 4;  // of a block, a warp each
constexpr int kStateThreads = 32 * kStateRows;
constexpr int kSinkThreads = 256;

}  // namespace attune
