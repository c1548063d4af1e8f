// The config of the rungs on CUDA cores: naive, tiled, fused.
#pragma once

#include "../config.h"

namespace attune {

enum class Ladder : int32_t { naive, tiled, fused };

struct LadderConfig {
  Ladder rung = Ladder::naive;
  int block_q = 64;    // query rows of a tile (tiled, fused)
  int block_k = 64;    // keys of a tile (tiled, fused)
  bool vector = true;  // fused: 128-bit loads of Q, K, V; pointers, strides and dims allow it

  bool operator==(const LadderConfig&) const = default;
};

// The shared memory of `fused`, in floats: Q [block_q][D], then K [block_k][D] or V [block_k][Dv]
// in turn, then P^T [block_k][block_q]. Rows of Q, K and P^T are padded to an odd multiple of 4
// floats, so that eight threads that read four floats each from eight rows in a column meet no bank
// twice.
struct FusedLayout {
  int pitch_k, pitch_v, pitch_p;
  int kv_at, p_at, floats;
};

constexpr FusedLayout fused_layout(const LadderConfig& c, int dim, int dim_v) {
  FusedLayout m{round_up(dim, 8) + 4, round_up(dim_v, 64), c.block_q + 4, 0, 0, 0};
  m.kv_at = c.block_q * m.pitch_k;
  m.p_at = m.kv_at + c.block_k * (m.pitch_k > m.pitch_v ? m.pitch_k : m.pitch_v);
  m.floats = m.p_at + c.block_k * m.pitch_p;
  return m;
}

constexpr int kNaiveRows = 4;                     // of a block, a warp each
constexpr int kTiledThreads = 256;                // 4 x 4 elements of a 64 x 64 tile each
constexpr int kSoftmaxRows = kTiledThreads / 32;  // of a block of tiled's softmax, a warp each

// Query rows of a thread of `fused`, which also has a sixteenth of the columns. Few rows leave
// registers for a large Dv, and for features that need some themselves.
constexpr int thread_rows(const LadderConfig& c) { return c.block_q == 32 ? 4 : 8; }

constexpr int block_threads(const LadderConfig& c) {
  switch (c.rung) {
    case Ladder::naive:
      return 32 * kNaiveRows;
    case Ladder::tiled:
      return kTiledThreads;
    case Ladder::fused:
      return 16 * c.block_q / thread_rows(c);
  }
  return 0;
}

// Dynamic shared memory of a block, bytes.
constexpr int smem_bytes(const LadderConfig& c, const Problem& p) {
  return c.rung == Ladder::fused ? 4 * fused_layout(c, p.dim, p.dim_v).floats : 0;
}

// Empty when the config can run the problem on the GPU; else the reason.
constexpr const char* invalid_reason(const LadderConfig& c, const Problem& p, const Arch& arch) {
  if (arch.cc < 75) return "needs compute capability 7.5";
  if (p.dim < 1 || p.dim > kMaxHeadDim || p.dim_v < 1 || p.dim_v > kMaxHeadDim)
    return "a head dimension is not in 1..256";
  if (c.vector && c.rung != Ladder::fused) return "only fused has 128-bit loads";
  if (c.rung != Ladder::fused) {
    if (c.block_q != 64 || c.block_k != 64) return "block_q and block_k are not 64";
    return "";
  }
  if (c.block_q != 32 && c.block_q != 64 && c.block_q != 128) return "block_q is not 32, 64 or 128";
  if (c.block_k != 16 && c.block_k != 32 && c.block_k != 64 && c.block_k != 128)
    return "block_k is not 16, 32, 64 or 128";
  // A thread has 255 registers; beyond this many accumulators, some feature makes it spill.
  if (thread_rows(c) * (c.block_k / 16 + 4 * ((p.dim_v + 63) / 64)) > 112)
    return "the accumulators need more registers than a thread has";
  const int row_step = 16 / element_bytes(p.dtype);
  if (c.vector && (p.dim % row_step != 0 || p.dim_v % row_step != 0))
    return "128-bit loads need D and Dv in multiples of 16 bytes";
  if (smem_bytes(c, p) > arch.smem_block)
    return "the tiles need more shared memory than a block has";
  return "";
}

}  // namespace attune
