// The config of the tensor-core rung by mma.sync (8.0 and up): fp16, bf16, and fp32 as split fp16.
#pragma once

#include "../config.h"

namespace attune {

struct MmaConfig {
  int warps_q = 4;           // warps along the query rows
  int warps_k = 1;           // warps along the keys of a tile; their results are merged at the end
  int warp_rows = 32;        // query rows of a warp: 16 or 32
  int block_k = 64;          // keys of a tile
  int stages = 2;            // K/V tiles in shared memory
  int blocks_sm = 1;         // blocks a multiprocessor, which caps the registers
  bool q_registers = false;  // Q fragments stay in registers
  bool vector = true;        // 16-byte cp.async of Q, K, V; pointers, strides and dims allow it
  bool stage_mask =
      false;              // the mask comes through shared memory; its pointer and strides allow it
  bool pack_gqa = false;  // the query heads of a group share a tile
  bool split_kv = false;  // the key range is cut into Blocks::splits parts; attune_combine merges

  bool operator==(const MmaConfig&) const = default;

  constexpr int threads() const { return 32 * warps_q * warps_k; }
  constexpr int block_q() const { return warps_q * warp_rows; }
};

constexpr int kCombineThreads = 128;  // of the kernel that merges split-KV's parts

// fp32: K and V of a tile as the pre-pass leaves them in the workspace, and what it says of them.
constexpr int kTileNote = 16;  // bytes
constexpr int split_tile_bytes(const MmaConfig& c, const Problem& p) {
  return c.block_k * (round_up(p.dim, 16) + round_up(p.dim_v, 16)) * 4 + kTileNote;
}

// Rows in shared memory are up to this long, and the tiles are aligned to it: kernels reckon with
// it.
constexpr int kSmemAlign = 512;

// A staged mask's tile: rows of one chunk more than their data.
constexpr int mask_tile_bytes(const MmaConfig& c, const Problem& p) {
  return c.stage_mask ? c.block_q() * (c.block_k * element_bytes(p.mask) + 16) : 0;
}

// Dynamic shared memory of a block: Q (later O; for fp32 with a scale a row), then the stages of K,
// V and mask; at the end warps that share rows exchange their results there.
constexpr int smem_bytes(const MmaConfig& c, const Problem& p) {
  const int size = operand_bytes(p.dtype);
  const int dim = round_up(p.dim, 16), dim_v = round_up(p.dim_v, 16);
  const int q = c.block_q() * (dim > dim_v ? dim : dim_v) * size;
  const int mask = mask_tile_bytes(c, p);
  const int scales = p.dtype == DType::f32 ? round_up(c.block_q() * 4, kSmemAlign) : 0;
  const int note = p.dtype == DType::f32 ? kTileNote : 0;
  const int stage = round_up(c.block_k * (dim + dim_v) * size + mask + note, kSmemAlign);
  const int tiles = q + scales + c.stages * stage;
  const int exchange = c.warps_k == 1 ? 0 : c.threads() * c.warp_rows / 16 * (4 + dim_v / 2) * 4;
  return tiles > exchange ? tiles : exchange;
}

// Registers of a thread: the accumulators, and what was measured beside them. Beyond 255 it would
// spill: a config for which that holds without any feature is invalid; with features it is one of
// the last that selection takes.
constexpr int registers_of(const MmaConfig& c, const Problem& p, const Arch& arch) {
  const int rows = c.warp_rows / 16, keys = c.block_k / c.warps_k;
  const int dim = round_up(p.dim, 16), dim_v = round_up(p.dim_v, 16);
  const int accumulators = rows * (keys + dim_v) / 2 + (c.q_registers ? rows * dim / 4 : 0);
  const bool limits = p.causal || p.window();
  const bool sm100 = arch.cc == 100 || arch.cc == 103;
  if (p.dtype == DType::f32)
    return accumulators +
           (keys <= 16    ? 150
            : dim_v > dim ? 178
                          : 174) +
           24 * features_of(p) + (limits && arch.cc != 90 ? 12 : 0) + (sm100 ? 16 : 0);
  int registers = accumulators + 62 + 22 * features_of(p) + (p.window() ? 22 : 0);
  if (!c.vector) registers += 50;
  if (p.mask != MaskKind::none && !c.stage_mask) registers += 44;
  if (sm100 && dim_v > 64) registers += 8;
  if (arch.cc < 90) {
    if (features_of(p) > 0)
      registers += 66;
    else if (limits && rows == 2)
      registers += p.window() ? 44 : 34;
  }
  return registers;
}

constexpr const char* invalid_reason(const MmaConfig& c, const Problem& p, const Arch& arch) {
  if (arch.cc < 80) return "needs compute capability 8.0";
  if (p.dim < 1 || p.dim > kMaxHeadDim || p.dim_v < 1 || p.dim_v > kMaxHeadDim)
    return "a head dimension is not in 1..256";
  if (c.warps_q < 1 || c.warps_k < 1 || c.warps_q * c.warps_k > 8)
    return "warps_q x warps_k is not in 1..8";
  if (c.warps_k > 1 && c.warps_q > 1) return "only warps of one row of tiles can share the keys";
  if (c.warp_rows != 16 && c.warp_rows != 32) return "warp_rows is not 16 or 32";
  if (c.block_k < 16 * c.warps_k || c.block_k > 128 || c.block_k % (16 * c.warps_k) != 0)
    return "block_k is not a multiple of 16 keys a warp, up to 128";
  if (c.stages < 2 || c.stages > 4) return "stages is not in 2..4";
  if (c.blocks_sm < 1 || c.blocks_sm > 4) return "blocks_sm is not in 1..4";
  if (c.vector &&
      (p.dim % (16 / element_bytes(p.dtype)) != 0 || p.dim_v % (16 / element_bytes(p.dtype)) != 0))
    return "16-byte copies need D and Dv in multiples of 16 bytes";
  if (c.stage_mask) {
    if (p.mask == MaskKind::none) return "there is no mask to stage";
    if (c.pack_gqa) return "a staged mask needs one head a tile";
    const int chunks = c.block_k * element_bytes(p.mask) / 16;
    if (chunks == 0 || c.block_q() * chunks % c.threads() != 0)
      return "the mask's tile does not divide among the threads";
  }
  if (p.dtype == DType::f32 && c.q_registers) return "split fp32 keeps Q in shared memory";
  Problem plain;
  plain.dtype = p.dtype;
  plain.dim = p.dim;
  plain.dim_v = p.dim_v;
  if (registers_of(c, plain, arch) > 255 ||
      registers_of(c, plain, arch) * c.threads() * c.blocks_sm > 65536)
    return "the accumulators need more registers than a thread has";
  if (smem_bytes(c, p) > arch.smem_block)
    return "the tiles need more shared memory than a block has";
  if (c.blocks_sm * (smem_bytes(c, p) + 1024) > arch.smem_sm)
    return "blocks_sm blocks need more shared memory than a multiprocessor has";
  return "";
}

}  // namespace attune
