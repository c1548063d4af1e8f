// Hopper's rung: which config a problem gets, and its launches.
#include <algorithm>

#include "src/select/cuda_select.hpp"

namespace attune {
namespace {

int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool is_short(const Problem& p) { return p.seq_k < 1024; }

// Where only a limit on the keys is applied to the scores: the fastest that was measured, by head
// dimension (docs/notes).
WgmmaConfig plain_config(const Problem& p) {
  const int wide = std::max(p.dim, p.dim_v);
  WgmmaConfig c{.q_buffers = 2, .flat = true, .lazy = true, .schedule = kPersistent};
  if (wide <= 64) {  // limits that are reckoned out row by row take registers
    c.warpgroups = p.window() || p.ragged ? 3 : 4, c.block_k = 64, c.stages = 4;
  } else if (wide <= 128 && p.causal && is_short(p)) {
    c.warpgroups = 2, c.block_k = 64, c.stages = 4, c.flat = false, c.turn = kExpTurn;
  } else if (wide <= 128 && p.causal) {
    c.warpgroups = 2, c.block_k = 128, c.stages = 2;
    c.flat = false, c.turn = kExpTurn;
  } else if (wide <= 128 && is_short(p)) {
    c.warpgroups = 2, c.block_k = 128, c.stages = 2;
  } else if (wide <= 128) {
    c.warpgroups = 3, c.block_k = 64, c.stages = 3, c.turn = kProductTurn;
  } else if (is_short(p) && wide <= 192) {
    c.warpgroups = 2, c.block_k = p.causal ? 64 : 80, c.stages = 2;
  } else if (is_short(p)) {
    c.warpgroups = 2, c.block_k = 64, c.stages = 2, c.q_buffers = 1, c.flat = false;
    c.turn = kExpTurn;
  } else {
    c.warpgroups = 2, c.stages = 2;
    c.block_k = wide <= 192 ? 96 : p.window() ? 48 : p.causal ? 64 : 80;
    c.q_buffers = 1, c.flat = false;
  }
  c.tensor_sums = !p.lse && !p.dropout && p.dim_v % kPanel == 0 && wide <= 128 &&
                  (p.causal || !is_short(p) || wide <= 64);
  if (p.window() || (p.causal && !is_short(p))) c.schedule = kDynamic;
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

// With a mask beside K.
WgmmaConfig masked_config(const Problem& p) {
  const int wide = std::max(p.dim, p.dim_v);
  WgmmaConfig c{.block_k = 64, .q_buffers = 2, .flat = true, .lazy = true, .schedule = kPersistent};
  c.warpgroups = wide <= 64 ? 3 : 2;
  c.stages = wide <= 128 ? 3 : 2;
  if (wide > 128) c.q_buffers = 1, c.flat = false;
  const bool limits = p.causal || p.window();
  if (wide > 192 && limits && p.mask != MaskKind::boolean) c.block_k = 32;  // or it would spill
  if (p.mask == MaskKind::f32) c.block_k = wide <= 128 ? 64 : 32, c.stages = 2;
  c.stage_mask = true;
  if (limits) c.schedule = kDynamic;
  return c;
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
  return c;
}

// Of K and V in the workspace.
int64_t split_tiles(const Problem& p, const WgmmaConfig& c) {
  return p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k);
}

}  // namespace

WgmmaConfig default_wgmma_config(const CudaRequest& r) {
  const Problem& p = r.problem;
  if (p.dtype == DType::f32) return split_config(p, r.arch);
  WgmmaConfig c = careful_config(p);
  const bool only_mask = features_of(p) == int(p.mask != MaskKind::none);
  if (features_of(p) == 0) {
    if (!small_config(p, r.arch, &c)) c = plain_config(p);
  } else if (only_mask && r.layout.mask16) {
    c = masked_config(p);
  }
  if (*invalid_reason(c, p, r.arch) != '\0') c = careful_config(p);
  // Registers come in eights: 40 cost two consumers no more than 32 do. 24 are too few for masks.
  const bool widest = std::max(p.dim, p.dim_v) > 192;
  if (c.warpgroups == 2) c.producer_registers = widest && features_of(p) == 0 ? 24 : 40;
  if (c.schedule == kDynamic && r.workspace_bytes < 256) c.schedule = kPersistent;
  return c;
}

int64_t wgmma_tiles(const Problem& p, const WgmmaConfig& c) {
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
  plan.divisors = block_divisors(p, c.block_q(), false, 1, int64_t{c.group_mb} << 20);
  plan.tiles = uint32_t(wgmma_tiles(p, c));
  plan.box_k = uint32_t(c.block_k);
  if (c.stage_mask) plan.mask_box = uint32_t(mask_tile(c, p).keys);
  const bool split = p.dtype == DType::f32;
  if (split) {  // the pre-pass sets the counter
    const int64_t tiles = split_tiles(p, c);
    plan.workspace_bytes = kCounterBytes + size_t(tiles) * size_t(split_tile_bytes(c, p));
    plan.launches.push_back({"attune_split", uint32_t(2 * tiles), kSplitThreads, 0});
  } else if (c.schedule == kDynamic) {
    plan.counter = true;
    plan.workspace_bytes = kCounterBytes;
  }
  // Dealt in pairs, of which one may be missing, a block comes by half of its tiles in vain.
  const uint32_t most = uint32_t(ceil_div(plan.tiles, kMostTiles / 2));
  const uint32_t blocks =
      c.schedule == kGrid ? plan.tiles : std::min(plan.tiles, std::max(uint32_t(r.arch.sms), most));
  plan.launches.push_back(
      {"attune_wgmma", blocks, uint32_t(c.threads()), uint32_t(smem_bytes(c, p)), split, true});
  return plan;
}

}  // namespace attune
