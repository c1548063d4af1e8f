// The config of the backward pass on tensor cores by mma.sync (8.0 and up), for fp16 and bf16.
#pragma once

#include "../config.h"
#include "../params.h"

namespace attune {

struct MmaBackwardConfig {
  int warps = 8;          // of a block, each with rows of its own
  int warp_keys = 16;     // keys of a warp, where blocks own keys (dK, dV): 16 or 32
  int warp_rows = 16;     // query rows of a warp, where blocks own queries (dQ): 16 or 32
  int block_q = 32;       // query rows of a tile that blocks with keys walk over
  int block_k = 32;       // keys of a tile that blocks with queries walk over
  int stages = 2;         // such tiles in shared memory
  int blocks_sm = 1;      // blocks a multiprocessor, which caps the registers
  bool separate = false;  // dK and dV by blocks of their own: S twice, for half the accumulators
  bool vector = true;     // 16-byte copies; pointers, strides and dims allow it

  bool operator==(const MmaBackwardConfig&) const = default;

  constexpr int threads() const { return 32 * warps; }
  // Of a block: rows that it owns, and rows of the tiles that it walks over.
  constexpr int own(bool keys) const { return warps * (keys ? warp_keys : warp_rows); }
  constexpr int walked(bool keys) const { return keys ? block_q : block_k; }
};

// Rows of a tile that a warp takes at once, at most.
constexpr int kBackwardPart = 32;

// Of a stage: a tile of Q and dO with its rows' states, or of K and V.
constexpr int backward_stage_bytes(const MmaBackwardConfig& c, const Problem& p, bool keys) {
  const int row = (round_up(p.dim, 16) + round_up(p.dim_v, 16)) * 2;
  return round_up(c.walked(keys) * (row + (keys ? int(sizeof(RowState)) : 0)), 512);
}

// Dynamic shared memory of a block: its own rows, then the stages.
constexpr int backward_smem_bytes(const MmaBackwardConfig& c, const Problem& p, bool keys) {
  const int row = (round_up(p.dim, 16) + round_up(p.dim_v, 16)) * 2;
  return c.own(keys) * row + c.stages * backward_stage_bytes(c, p, keys);
}

constexpr int smem_bytes(const MmaBackwardConfig& c, const Problem& p) {
  const int keys = backward_smem_bytes(c, p, true), queries = backward_smem_bytes(c, p, false);
  return keys > queries ? keys : queries;
}

// Registers of a thread: accumulators, S and dP of a part, and what was counted beside them.
constexpr int backward_registers(const MmaBackwardConfig& c, const Problem& p, bool keys,
                                 int part) {
  const int dim = round_up(p.dim, 16), dim_v = round_up(p.dim_v, 16);
  const int wide = dim > dim_v ? dim : dim_v;
  const int columns = !keys ? dim : c.separate ? wide : dim + dim_v;
  const int tiles = (keys ? c.warp_keys : c.warp_rows) / 16;
  const bool limits = p.causal || p.window() || p.keys_vary();
  return tiles * (columns / 2 + part + (keys ? 0 : 4)) + 56 + (limits ? 8 : 0) +
         (columns > 256 ? 8 : 0) + (p.mask != MaskKind::none ? 44 : 0);
}

// A warp takes its block's tiles in parts of so many rows, of which S and dP lie in registers: half
// as many where these are short.
constexpr int backward_part(const MmaBackwardConfig& c, const Problem& p, bool keys) {
  return backward_registers(c, p, keys, kBackwardPart) <= 255 ? kBackwardPart : kBackwardPart / 2;
}

constexpr const char* invalid_reason(const MmaBackwardConfig& c, const Problem& p,
                                     const Arch& arch) {
  if (arch.cc < 80) return "needs compute capability 8.0";
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "takes fp16 and bf16 only";
  if (p.score_mod) return "the derivative of score_mod is not known";
  if (p.dim < 1 || p.dim > kMaxHeadDim || p.dim_v < 1 || p.dim_v > kMaxHeadDim)
    return "a head dimension is not in 1..256";
  if (c.warps < 1 || c.warps > 8) return "warps is not in 1..8";
  if (c.warp_keys != 16 && c.warp_keys != 32) return "warp_keys is not 16 or 32";
  if (c.warp_rows != 16 && c.warp_rows != 32) return "warp_rows is not 16 or 32";
  if (c.block_q < kBackwardPart || c.block_q > 128 || c.block_q % kBackwardPart != 0 ||
      c.block_k < kBackwardPart || c.block_k > 128 || c.block_k % kBackwardPart != 0)
    return "block_q or block_k is not a multiple of 32 up to 128";
  if (c.stages < 2 || c.stages > 4) return "stages is not in 2..4";
  if (c.blocks_sm < 1 || c.blocks_sm > 4) return "blocks_sm is not in 1..4";
  if (c.vector && (p.dim % 8 != 0 || p.dim_v % 8 != 0))
    return "16-byte copies need D and Dv in multiples of 16 bytes";
  const int of_keys = backward_registers(c, p, true, kBackwardPart / 2);
  const int of_queries = backward_registers(c, p, false, kBackwardPart / 2);
  const int registers = of_keys > of_queries ? of_keys : of_queries;
  if (registers > 255 || registers * c.threads() * c.blocks_sm > 65536)
    return "the accumulators need more registers than a thread has";
  if (smem_bytes(c, p) > arch.smem_block)
    return "the tiles need more shared memory than a block has";
  if (c.blocks_sm * (smem_bytes(c, p) + 1024) > arch.smem_sm)
    return "blocks_sm blocks need more shared memory than a multiprocessor has";
  return "";
}

}  // namespace attune
