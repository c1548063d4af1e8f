// The config of the backward pass on CUDA cores.
#pragma once

#include "../config.h"

namespace attune {

// Which kernels a translation unit has. dMask is asked for rarely, and costs the most.
enum class BackwardPart : int32_t { gradients, dmask };

struct BackwardConfig {
  BackwardPart part = BackwardPart::gradients;
  int block = 64;      // rows that a block owns: queries (dQ, dMask) or keys (dK and dV)
  int step = 32;       // rows of the other kind, which it meets at once
  bool vector = true;  // 128-bit loads and stores; pointers, strides and dims allow it

  bool operator==(const BackwardConfig&) const = default;
};

constexpr int kBackwardThreads = 128;  // [8][16]

// Rows of a thread among those that a block owns, and among those that it meets.
constexpr int own_rows(const BackwardConfig& c) { return c.block / 8; }
constexpr int met_rows(const BackwardConfig& c) { return c.step / 16; }

// Shared memory, in floats: both operands that the block owns (Q and dO, or K and V), one at a time
// of those that it meets, weights [step][block], and the states of query rows. Rows are padded to
// an odd multiple of 4 floats, as in `fused`.
struct BackwardLayout {
  int pitch, pitch_v, pitch_w;
  int own_v_at, met_at, weights_at, states_at, floats;
};

constexpr BackwardLayout backward_layout(const BackwardConfig& c, int dim, int dim_v) {
  BackwardLayout m{round_up(dim, 8) + 4, round_up(dim_v, 8) + 4, c.block + 4, 0, 0, 0, 0, 0};
  m.own_v_at = c.block * m.pitch;
  m.met_at = m.own_v_at + c.block * m.pitch_v;
  m.weights_at = m.met_at + c.step * (m.pitch > m.pitch_v ? m.pitch : m.pitch_v);
  m.states_at = m.weights_at + c.step * m.pitch_w;
  m.floats = m.states_at + 4 * (c.block > c.step ? c.block : c.step);
  return m;
}

// Dynamic shared memory of a block, bytes.
constexpr int smem_bytes(const BackwardConfig& c, const Problem& p) {
  return 4 * backward_layout(c, p.dim, p.dim_v).floats;
}

// Groups of 64 columns: a thread has four columns of each.
constexpr int column_groups(int dim) { return (dim + 63) / 64; }

// Empty when the config can run the problem on the GPU; else the reason.
constexpr const char* invalid_reason(const BackwardConfig& c, const Problem& p, const Arch& arch) {
  if (arch.cc < 75) return "needs compute capability 7.5";
  if (p.dim < 1 || p.dim > kMaxHeadDim || p.dim_v < 1 || p.dim_v > kMaxHeadDim)
    return "a head dimension is not in 1..256";
  if (c.block != 16 && c.block != 32 && c.block != 64) return "block is not 16, 32 or 64";
  if (c.step != 16 && c.step != 32) return "step is not 16 or 32";
  // dK and dV, and two products.
  if (own_rows(c) * (4 * column_groups(p.dim) + 4 * column_groups(p.dim_v) + 2 * met_rows(c)) > 96)
    return "the accumulators need more registers than a thread has";
  const int row_step = 16 / element_bytes(p.dtype);
  if (c.vector && (p.dim % row_step != 0 || p.dim_v % row_step != 0))
    return "128-bit loads need D and Dv in multiples of 16 bytes";
  if (smem_bytes(c, p) > arch.smem_block)
    return "the tiles need more shared memory than a block has";
  return "";
}

}  // namespace attune
