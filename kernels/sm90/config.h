// The config of Hopper's rung (9.0): wgmma, TMA, warp specialisation; fp32 as split fp16.
#pragma once

#include "../config.h"

namespace attune {

enum Turn : int { kNoTurn, kProductTurn, kExpTurn };  // what warpgroups take turns at
enum Schedule : int {
  kGrid,        // a block for every tile of rows
  kPersistent,  // as many blocks as fit, each with every n-th tile; causal: pair of tiles
  kDynamic      // as many blocks as fit, each with the next tile that is left
};

// What is taken off a row's scores before the exponential.
enum class RowMaxima : int {
  exact,  // the largest score so far
  lazy,   // one that stays while the largest grows by less than 2^8
  first   // that of the row's first tiles for all of it, while sums allow
};
// How the weights of a row are added up.
enum class RowSums : int {
  fp32,     // as they are: exact enough for LSE
  rounded,  // as PV has them, in fp32
  tensor    // as PV has them, by a column of ones beside V
};
// How a mask comes to the scores.
enum class MaskPath : int {
  direct,      // each thread reads what it needs where it is
  staged,      // its tile comes by TMA beside that of K, and is read while products are computed
  staged_late  // the same, and is read after the products
};

// What a thread that copies tiles by itself needs; one that asks TMA for them needs fewer.
constexpr int kCopyRegisters = 40;

// One producer warp brings tiles, or four copy them; `warpgroups` consumers of 64 query rows each
// compute. Where the numbers come from, and what each field bought: docs/notes.
struct WgmmaConfig {
  int warpgroups = 2;  // consumers
  int block_k = 128;   // keys of a tile
  int stages = 2;      // tiles of K and of V in shared memory
  int q_buffers = 1;   // 2: the next tile's Q comes while this one is computed
  bool flat = false;   // the next rows' first QK runs beside these rows' last PV
  int turn = kNoTurn;
  RowMaxima maxima = RowMaxima::exact;
  RowSums sums = RowSums::fp32;
  int early_exps = 4;  // eighths of the exponentials that come before the wait for PV
  int schedule = kGrid;
  int producer_registers = 32;  // of a thread that brings tiles; what is left is the consumers'
  MaskPath mask_path = MaskPath::direct;
  bool pack_gqa = false;  // the query heads that share keys share a tile
  // Not chosen: it follows from how the call's tensors lie. Bytes that a producer's thread copies
  // at once, where TMA cannot reach them: 16, 8 or 4 by cp.async, 2 by plain loads. 0: TMA.
  int copy = 0;

  bool operator==(const WgmmaConfig&) const = default;

  constexpr bool tma() const { return copy == 0; }
  constexpr bool keeps_maxima() const { return maxima != RowMaxima::exact; }
  constexpr bool stages_mask() const { return mask_path != MaskPath::direct; }
  constexpr int producer_warps() const { return tma() ? 1 : 4; }

  constexpr int threads() const { return 128 * (warpgroups + 1); }
  constexpr int block_q() const { return 64 * warpgroups; }
  // A thread's share of what the block is launched with, and what the producer leaves of it.
  constexpr int launch_registers() const { return 65536 / threads() / 8 * 8; }
  constexpr int consumer_registers() const {
    const int left = launch_registers() * threads() - producer_registers * 128;
    const int share = left / (128 * warpgroups) / 8 * 8;
    return share < 248 ? share : 248;
  }

  // What tile/work.h asks for.
  static constexpr bool split_kv = false;
};

// Tiles lie in panels of 64 columns: 128 bytes a row, swizzled.
constexpr int kPanel = 64;
constexpr int panel_bytes(int rows) { return rows * kPanel * 2; }
constexpr int panels_of(int dim) { return (dim + kPanel - 1) / kPanel; }

// A mask's tile: 64 rows a warpgroup, in panels of so many keys and bytes.
struct MaskTile {
  int panels = 0, keys = 1, pitch = 0;
};
constexpr MaskTile mask_tile(const WgmmaConfig& c, const Problem& p) {
  if (!c.stages_mask() || p.mask == MaskKind::none) return {};
  const int bytes = element_bytes(p.mask), row = c.block_k * bytes;
  if (row < 128) return {1, c.block_k, row};
  return {(row + 127) / 128, 128 / bytes, 128};
}

// A block takes no more tiles of rows than it has records for.
constexpr int kMostTiles = 64;
constexpr int kMostWarpgroups = 4, kMostStages = 8, kMostQBuffers = 2;

// Where the words lie by which the warps of a block tell each other what is done: bytes from the
// start of this part of shared memory. Of each ring (ring.cuh) the mbarriers of all its slots.
struct WgmmaControl {
  int q_full, q_empty, k_full, k_empty, v_full, v_empty, tile_full, tile_empty;
  int tile;          // a dynamic schedule's next tile of rows
  int any_record;    // not 0: some tile of rows is recorded
  int first_passed;  // an mbarrier: every consumer's warp is through its first pass
  // Of the block's nth tile, for each warpgroup: 1 + the tile if its rows must be computed again.
  int records;
  int bytes;
};
constexpr int kBarrierBytes = 8, kWordBytes = 4;
constexpr int kRecordBytes = kMostWarpgroups * kWordBytes;  // of one tile
constexpr WgmmaControl wgmma_control() {
  WgmmaControl c{};
  c.q_empty = c.q_full + kMostQBuffers * kBarrierBytes;
  c.k_full = c.q_empty + kMostQBuffers * kBarrierBytes;
  c.k_empty = c.k_full + kMostStages * kBarrierBytes;
  c.v_full = c.k_empty + kMostStages * kBarrierBytes;
  c.v_empty = c.v_full + kMostStages * kBarrierBytes;
  c.tile_full = c.v_empty + kMostStages * kBarrierBytes;
  c.tile_empty = c.tile_full + kBarrierBytes;
  c.tile = c.tile_empty + kBarrierBytes;
  c.any_record = c.tile + kWordBytes;
  c.first_passed = c.any_record + kWordBytes;
  c.records = c.first_passed + kBarrierBytes;
  c.bytes = c.records + kMostTiles * kRecordBytes;
  return c;
}

// fp32: the pre-pass's workspace begins with the number of the next tile, and has a note for every
// tile of K and of V; the notes of those that are in shared memory lie there too.
constexpr int kCounterBytes = 256, kSplitNote = 16;

// The plan of shared memory, bytes from a start that is a multiple of kTileAlign:
//
//   Q buffers      q each: 64 rows a warpgroup, later O; fp32: first as it is, then hi and lo
//   stages of K    k each: block_k rows; fp32: hi, then lo
//   stages of V    v each: the same, and a panel of ones where tensor cores add up the weights
//   stages of mask m each: 64 rows a warpgroup, where the mask is staged
//   WgmmaControl
//   notes          fp32: of each stage's tile of K, then of its tile of V
constexpr int kTileAlign = 1024;  // of a swizzled tile
struct WgmmaLayout {
  int q, k, v, m;                              // of one buffer or stage
  int k_at, v_at, m_at, control_at, notes_at;  // Q is at 0
  int bytes;                                   // with what aligning the start takes
};
constexpr WgmmaLayout wgmma_layout(const WgmmaConfig& c, const Problem& p) {
  const bool split = p.dtype == DType::f32;            // panels of hi, then as many of lo
  const int wide = p.dim > p.dim_v ? p.dim : p.dim_v;  // O goes where Q was
  WgmmaLayout l{};
  l.q = c.warpgroups * panel_bytes(64) * (split ? 2 * panels_of(p.dim) : panels_of(wide));
  l.k = panel_bytes(c.block_k) * panels_of(p.dim) * (split ? 2 : 1);
  l.v = panel_bytes(c.block_k) * (panels_of(p.dim_v) + (c.sums == RowSums::tensor ? 1 : 0)) *
        (split ? 2 : 1);
  l.m = c.warpgroups * 64 * mask_tile(c, p).panels * mask_tile(c, p).pitch;
  l.k_at = c.q_buffers * l.q;
  l.v_at = l.k_at + c.stages * l.k;
  l.m_at = l.v_at + c.stages * l.v;
  l.control_at = l.m_at + c.stages * l.m;
  l.notes_at = l.control_at + wgmma_control().bytes;
  l.bytes = kTileAlign + l.notes_at + (split ? 2 * c.stages * kSplitNote : 0);
  return l;
}
// fp32: of a tile in the workspace.
constexpr int split_tile_bytes(const WgmmaConfig& c, const Problem& p) {
  return wgmma_layout(c, p).k + wgmma_layout(c, p).v + 2 * kSplitNote;
}
constexpr int smem_bytes(const WgmmaConfig& c, const Problem& p) {
  return wgmma_layout(c, p).bytes;
}

constexpr const char* invalid_reason(const WgmmaConfig& c, const Problem& p, const Arch& arch) {
  if (arch.cc != 90) return "needs compute capability 9.0: its instructions exist there alone";
  if (p.dim < 1 || p.dim > kMaxHeadDim || p.dim_v < 1 || p.dim_v > kMaxHeadDim)
    return "a head dimension is not in 1..256";
  const int row_step = 16 / element_bytes(p.dtype);
  if (c.tma() && (p.dim % row_step != 0 || p.dim_v % row_step != 0))
    return "TMA needs rows in multiples of 16 bytes";
  if (!c.tma()) {
    if (p.dtype == DType::f32) return "fp32 brings its tiles by TMA";
    if (c.copy != 2 && c.copy != 4 && c.copy != 8 && c.copy != 16)
      return "copy is not 0, 2, 4, 8 or 16";
    if (p.dim * 2 % c.copy != 0 || p.dim_v * 2 % c.copy != 0)
      return "a head dimension is not a multiple of what is copied at once";
    if (c.stages_mask()) return "a staged mask comes by TMA";
    if (c.pack_gqa) return "packed heads come by TMA";
    if (c.maxima == RowMaxima::first) return "first maxima need TMA, which can bring tiles again";
    if (c.producer_registers < kCopyRegisters) return "threads that copy tiles need 40 registers";
  }
  if (c.warpgroups < 1 || c.warpgroups > kMostWarpgroups) return "warpgroups is not in 1..4";
  if (c.block_k < 16 || c.block_k > 256 || c.block_k % 16 != 0)
    return "block_k is not a multiple of 16 up to 256";
  if (c.stages < 1 || c.stages > kMostStages) return "stages is not in 1..8";
  if (c.q_buffers != 1 && c.q_buffers != 2) return "q_buffers is not 1 or 2";
  if (c.flat && c.q_buffers != 2) return "flat needs two Q buffers";
  if (c.flat && c.schedule == kGrid) return "flat needs blocks that go on to other rows";
  if (c.turn != kNoTurn && c.warpgroups == 1) return "one warpgroup has nobody to take turns with";
  if (c.turn < kNoTurn || c.turn > kExpTurn) return "turn is not in 0..2";
  if (c.schedule < kGrid || c.schedule > kDynamic) return "schedule is not in 0..2";
  if (c.early_exps < 0 || c.early_exps > 8) return "early_exps is not in 0..8";
  if (c.sums == RowSums::tensor && (p.dim_v % kPanel != 0 || p.dim_v > 248))
    return "sums by tensor cores need Dv in whole panels, and 8 columns more";
  if (c.sums != RowSums::fp32 && (p.dropout || p.lse))
    return "sums of rounded weights are not exact enough here";
  if (c.maxima < RowMaxima::exact || c.maxima > RowMaxima::first) return "maxima is not in 0..2";
  if (c.sums < RowSums::fp32 || c.sums > RowSums::tensor) return "sums is not in 0..2";
  if (c.mask_path < MaskPath::direct || c.mask_path > MaskPath::staged_late)
    return "mask_path is not in 0..2";
  if (c.producer_registers < 24 || c.producer_registers > 56 || c.producer_registers % 8 != 0)
    return "producer_registers is not 24, 32, 40, 48 or 56";
  if (c.stages_mask() && p.mask == MaskKind::none) return "there is no mask to stage";
  if (c.pack_gqa && c.stages_mask()) return "a staged mask needs one head a tile";
  if (c.pack_gqa && p.heads_kv > 0 && (p.group() > 64 || 64 % p.group() != 0))  // a key has none
    return "pack_gqa needs a group of heads that divides 64";
  if (c.maxima == RowMaxima::first && features_of(p) != 0)
    return "first maxima need scores that are products";
  if (c.stages_mask() && mask_tile(c, p).pitch != 128 && mask_tile(c, p).pitch != 64)
    return "a staged mask needs rows of 64 bytes, or 128 and more";
  const bool split = p.dtype == DType::f32;
  if (split && c.keeps_maxima())
    return "fp32 adds up O by itself, where a new maximum costs nothing";
  if (split && c.sums != RowSums::fp32)
    return "sums of rounded weights are not exact enough for fp32";
  if (split && c.stages_mask()) return "fp32 reads masks from where they are";
  if (split && p.dim_v > 128) return "fp32 holds O twice: Dv is above 128";
  if (split && c.pack_gqa) return "fp32 has no pack_gqa";
  const int mask = c.mask_path != MaskPath::staged ? 0
                   : p.mask == MaskKind::f32       ? c.block_k / 2
                                                   : c.block_k / 4;
  // fp32: weights in two parts, and beside O the products of one tile.
  const int accumulators = split ? c.block_k + round_up(p.dim_v, 8)
                                 : c.block_k / 2 + round_up(p.dim_v, 8) / 2 + c.block_k / 4 + mask;
  if (accumulators + (split ? 40 : 24) > c.consumer_registers())
    return "the accumulators need more registers than a consumer has";
  if (smem_bytes(c, p) > arch.smem_block)
    return "the tiles need more shared memory than a block has";
  return "";
}

}  // namespace attune
