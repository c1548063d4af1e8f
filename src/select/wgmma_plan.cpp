// Hopper's rung: which config a problem gets, and its launches.
#include <algorithm>

#include "src/select/cuda_select.hpp"

namespace attune {
namespace {

// Registers of a producer that looks for the tiles that a block mask leaves.
constexpr int kSearching = 56;

bool is_short(const Problem& p) { return p.seq_k < 1024; }

bool sums_by_tensor_cores(const Problem& p) {
  return !p.lse && !p.dropout && p.dim_v % kPanel == 0 && std::max(p.dim, p.dim_v) <= 128;
}

bool is_long(const Problem& p) { return p.seq_k >= 8192; }

// Where only a limit on the keys is applied to the scores: the fastest that was measured, by head
// dimension (docs/notes).
WgmmaConfig plain_config(const Problem& p) {
  const int wide = std::max(p.dim, p.dim_v);
  const bool limits = p.causal || p.window();
  const bool bf16 = p.dtype == DType::bf16 && !p.window();  // measured for these alone
  WgmmaConfig c{.q_buffers = 2, .lazy = true, .schedule = kPersistent};
  if (wide <= 64) {  // lengths that are reckoned out row by row take registers
    c.warpgroups = p.ragged ? 3 : 4, c.block_k = 64, c.stages = 4;
    // The flat walk pays, with sums by tensor cores, in long rows and for causal bf16 alone;
    // without them everywhere but in short causal rows.
    c.flat = !p.window() && !(p.causal && is_short(p)) &&
             (!sums_by_tensor_cores(p) || is_long(p) || (p.causal && bf16));
    if (p.causal && is_short(p)) c.group_mb = 8;
    if (p.window()) c.stages = 6;
    if (!p.lse && !limits && is_long(p)) c.turn = kProductTurn;
  } else if (wide <= 128 && limits) {
    c.block_k = 128;
    if (wide > 96 && (p.window() || !is_long(p))) c.block_k = 64, c.stages = 4;
    if (wide > 96 && p.window())
      c.flat = true;
    else if (wide > 96 || !bf16)
      c.turn = kExpTurn;
  } else if (wide <= 128) {
    c.block_k = 128, c.flat = true;
  } else if (wide <= 192) {
    c.block_k = is_short(p) || (bf16 && !p.causal) ? 64 : 80;
    c.turn = kExpTurn;
    if (c.block_k == 80 && !p.causal) c.flat = true, c.turn = kNoTurn;
  } else {
    c.block_k = p.window() ? 48 : 64, c.q_buffers = 1;
    if (!p.window() && !is_long(p)) c.turn = kExpTurn;
  }
  c.tensor_sums = sums_by_tensor_cores(p);
  if (wide <= 64 || (wide > 96 && wide <= 128))
    c.first_max = c.tensor_sums;
  else if (wide <= 96)
    c.first_max = !p.window();
  else
    c.first_max = bf16 && (!p.causal || is_short(p) || (wide > 192 && !is_long(p)));
  if (limits && (wide <= 64 || !is_short(p))) c.schedule = kDynamic;
  // Of the exponentials, so many before the wait for PV: they no longer hang on maxima.
  if (wide <= 64 && c.first_max && !is_long(p) && !p.window()) c.early_exps = p.causal ? 2 : 6;
  return c;
}

// Few tiles: a block each, and smaller ones where that keeps more multiprocessors busy. False:
// there are so many that blocks which go from tile to tile are faster.
bool small_config(const Problem& p, const Arch& arch, WgmmaConfig* c) {
  const int wide = std::max(p.dim, p.dim_v);
  const auto tiles = [&](int rows) { return p.batch * p.heads_q * ceil_div(p.seq_q, rows); };
  const int waves = wide > 128 || (wide <= 64 && !p.causal) ? 1 : 2;
  if (tiles(128) > waves * arch.sms) return false;
  *c = {.lazy = true};
  if (wide > 128) {
    c->warpgroups = tiles(64) <= arch.sms ? 1 : 2, c->block_k = 64, c->stages = 2;
  } else if (tiles(64) <= arch.sms) {
    c->warpgroups = 1, c->block_k = wide <= 64 ? 128 : 64, c->stages = 4;
  } else {
    c->warpgroups = 2, c->block_k = p.causal ? 64 : 128, c->stages = p.causal ? 3 : 2;
  }
  return true;
}

// With a mask beside K. Read late, it leaves registers: for more warpgroups, or more keys.
WgmmaConfig masked_config(const Problem& p) {
  const int wide = std::max(p.dim, p.dim_v);
  const bool boolean = p.mask == MaskKind::boolean, limits = p.causal || p.window();
  WgmmaConfig c{.lazy = true, .schedule = limits ? kDynamic : kPersistent, .stage_mask = true};
  c.late_mask = wide <= 128;
  if (wide <= 64) {
    c.warpgroups = 4, c.block_k = 64, c.tensor_sums = sums_by_tensor_cores(p);
    c.turn = kProductTurn;
    if (p.mask != MaskKind::f32) c.stages = 3;
  } else if (wide <= 128) {
    c.block_k = p.mask == MaskKind::f32 ? 96 : 128, c.turn = kExpTurn;
    if (boolean) c.q_buffers = 2, c.flat = true, c.turn = kNoTurn;
  } else {
    c.block_k = p.mask == MaskKind::f32 || (wide > 192 && limits && !boolean) ? 32 : 64;
  }
  return c;
}

// With a block mask, which leaves tiles of rows with more keys and with fewer.
WgmmaConfig blocks_config(const Problem& p) {
  const int wide = std::max(p.dim, p.dim_v);
  return {.warpgroups = wide <= 64 ? 3 : 2,
          .block_k = wide <= 64    ? 64
                     : wide <= 128 ? 128
                     : wide <= 192 ? 64
                                   : 32,
          .stages = wide <= 64 ? 4 : 2,
          .q_buffers = wide <= 128 ? 2 : 1,
          .lazy = true,
          .tensor_sums = sums_by_tensor_cores(p),
          .schedule = kDynamic};
}

// Scores element by element.
WgmmaConfig careful_config(const Problem& p) {
  const int wide = std::max(p.dim, p.dim_v);
  const bool tight = wide > 192 && p.dropout;  // its random numbers take registers
  return {.warpgroups = tight ? 1 : 2,
          .block_k = wide <= 128   ? 64
                     : wide <= 192 ? 48
                                   : 32,
          .stages = 2};
}

// Where TMA cannot reach: a producer that copies needs registers of the consumers'.
WgmmaConfig copied(WgmmaConfig c, const CudaRequest& r) {
  const int wide = std::max(r.problem.dim, r.problem.dim_v);
  c.copy = r.layout.step;
  c.first_max = false;
  c.producer_registers = kCopyRegisters;
  const bool by_row = r.problem.window() || r.problem.ragged;  // limits, which take registers too
  c.warpgroups = std::min(c.warpgroups, wide > 64 && by_row ? 2 : 3);
  if (wide > 192) c.block_k = std::min(c.block_k, r.problem.window() ? 48 : 64);
  if (wide > 128 && r.problem.dropout) c.block_k = std::min(c.block_k, 32);
  return c;
}

// fp32: three products for each one, and accumulators twice. Plain scores have the configs that the
// study found fastest (docs/notes); others take registers, so their tiles are smaller.
WgmmaConfig split_config(const Problem& p, const Arch& arch) {
  const bool plain = features_of(p) == 0, narrow = std::max(p.dim, p.dim_v) <= 64;
  WgmmaConfig c{.stages = 2, .schedule = kPersistent};
  const bool crowded = p.window() || (p.causal && p.ragged);  // limits that take registers
  if (narrow)
    c.block_k = !plain ? 64 : crowded ? 96 : 128;
  else if (p.dim <= 128)
    c.block_k = !plain ? 32 : p.window() ? 48 : 64;
  else
    c.block_k = 32;
  if (p.causal || p.window()) c.schedule = kDynamic;
  if (narrow && plain) c.q_buffers = 2, c.flat = true, c.turn = kProductTurn;
  // Few tiles: smaller ones, where that keeps more multiprocessors busy.
  if (p.batch * p.heads_q * ceil_div(p.seq_q, 64) <= arch.sms)
    c.warpgroups = 1, c.turn = kNoTurn;
  else
    c.producer_registers = 40;  // 24 are too few, 32 leave the consumers no more
  if (p.block_mask_q != 0) c.producer_registers = kSearching;
  return c;
}

// Of K and V in the workspace.
int64_t split_tiles(const Problem& p, const WgmmaConfig& c) {
  return p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k);
}

}  // namespace

// Few queries, of heads that share keys: together they fill a tile.
bool packs_heads(const Problem& p) {
  return p.dtype != DType::f32 && p.group() > 1 && 64 % p.group() == 0 && p.seq_q < 64 &&
         p.seq_q * p.group() >= 32 && features_of(p) == 0;
}

WgmmaConfig default_wgmma_config(const CudaRequest& r) {
  const Problem& p = r.problem;
  if (p.dtype == DType::f32) return split_config(p, r.arch);
  const bool tma = r.layout.tma();
  WgmmaConfig c = careful_config(p);
  const bool only_mask = features_of(p) == int(p.mask != MaskKind::none);
  const bool only_blocks = p.block_mask_q != 0 && features_of(p) == 4;
  if (packs_heads(p) && tma) {
    const bool wide = std::max(p.dim, p.dim_v) > 128;
    c = {.warpgroups = 1, .block_k = wide ? 64 : 128, .stages = wide ? 2 : 3, .lazy = true};
    c.pack_gqa = true;
  } else if (only_blocks) {
    c = blocks_config(p);
  } else if (features_of(p) == 0) {
    if (!small_config(p, r.arch, &c)) c = plain_config(p);
  } else if (only_mask && r.layout.mask16 && tma) {
    c = masked_config(p);
  }
  if (!tma) c = copied(c, r);
  if (*invalid_reason(c, p, r.arch) != '\0')
    c = tma ? careful_config(p) : copied(careful_config(p), r);
  // Registers come in eights: 40 cost two consumers no more than 32 do. 24 are too few for masks.
  const bool widest = std::max(p.dim, p.dim_v) > 192;
  if (tma && c.warpgroups == 2) c.producer_registers = widest && features_of(p) == 0 ? 24 : 40;
  if (c.schedule == kDynamic && r.workspace_bytes < 256) c.schedule = kPersistent;
  if (p.block_mask_q != 0) c.producer_registers = kSearching;
  c.rounded_sums = c.lazy && !c.tensor_sums && !p.lse && !p.dropout;
  return c;
}

int64_t wgmma_tiles(const Problem& p, const WgmmaConfig& c) {
  if (c.pack_gqa) return p.batch * p.heads_kv * ceil_div(p.seq_q * p.group(), c.block_q());
  return p.batch * p.heads_q * ceil_div(p.seq_q, c.block_q());
}

int64_t wgmma_blocks(const Problem& p, const WgmmaConfig& c) {
  const int64_t split = p.dtype == DType::f32 ? 2 * split_tiles(p, c) : 0;
  return std::max(wgmma_tiles(p, c), split);
}

jit::Plan wgmma_plan(const CudaRequest& r, const WgmmaConfig& c) {
  const Problem& p = r.problem;
  jit::Plan plan;
  plan.id = cuda_problem_id(p, r.arch) + "/" + to_string(jit::Config(c));
  plan.spec = {kernel_key(p), c, r.score_mod, r.mask_mod, r.arch};
  plan.divisors = block_divisors(p, c.block_q(), c.pack_gqa, 1, int64_t{c.group_mb} << 20);
  plan.tiles = uint32_t(wgmma_tiles(p, c));
  if (c.tma()) plan.box_k = uint32_t(c.block_k / c.cluster);
  if (c.stage_mask) plan.mask_box = uint32_t(mask_tile(c, p).keys);
  plan.packed = c.pack_gqa;
  const bool split = p.dtype == DType::f32;
  if (split) {  // the pre-pass sets the counter
    const int64_t tiles = split_tiles(p, c);
    plan.workspace_bytes = kCounterBytes + size_t(tiles) * size_t(split_tile_bytes(c, p));
    plan.launches.push_back({"attune_split", uint32_t(2 * tiles), kSplitThreads, 0});
  } else if (c.schedule == kDynamic) {
    plan.counter = true;
    plan.workspace_bytes = kCounterBytes;
  }
  // A cluster's blocks have neighbouring tiles of one head; one may be left over.
  const uint32_t cluster = uint32_t(c.cluster);
  const uint32_t shares =
      cluster == 1 ? plan.tiles
                   : uint32_t(p.batch * p.heads_q * ceil_div(p.seq_q, cluster * c.block_q()));
  // Dealt in pairs, of which one may be missing, a block comes by half of its tiles in vain.
  const uint32_t most = uint32_t(ceil_div(shares, kMostTiles / 2));
  const uint32_t fit = std::max(uint32_t(r.arch.sms) / cluster, most);
  const uint32_t clusters = c.schedule == kGrid ? shares : std::min(shares, fit);
  plan.launches.push_back({"attune_wgmma", clusters * cluster, uint32_t(c.threads()),
                           uint32_t(smem_bytes(c, p)), split, true, cluster});
  return plan;
}

}  // namespace attune
