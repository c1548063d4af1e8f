// The tensor-core rung: which config a problem gets, and the launches of a config. Where the
// numbers come from: docs/notes/2026-11-15-mma-kernel.md.
#include <algorithm>

#include "src/select/cuda_select.hpp"

namespace attune {
namespace {

constexpr int64_t kGroupBytes = 30'000'000;  // of K and V that stay in the L2 of the larger GPUs
constexpr int kMinSplitTiles = 2;  // fewer tiles a part, and merging costs more than it buys

// Rows that one head, or the heads that share a key head, put into tiles.
int64_t rows_of(const Problem& p, bool packed) { return packed ? p.seq_q * p.group() : p.seq_q; }

int64_t tiles_of(const Problem& p, const MmaConfig& c) {
  return p.batch * (c.pack_gqa ? p.heads_kv : p.heads_q) *
         ceil_div(rows_of(p, c.pack_gqa), c.block_q());
}

// In order of preference; the first that the problem and the GPU allow is taken.
constexpr MmaConfig kFewRows[] = {
    {.warps_q = 1, .warps_k = 4, .warp_rows = 16, .block_k = 64, .stages = 3, .blocks_sm = 2},
    {.warps_q = 1, .warps_k = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 1},
    {.warps_q = 1, .warps_k = 2, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1},
    {.warps_q = 1, .warps_k = 1, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
};
constexpr MmaConfig kSmallGrid[] = {
    {.warps_q = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 2},
    {.warps_q = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 1},
    {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1},
    {.warps_q = 4, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
};
constexpr MmaConfig kManyRows[] = {
    {.warps_q = 4, .warp_rows = 32, .block_k = 128, .stages = 2, .blocks_sm = 2},  // D <= 64
    {.warps_q = 4, .warp_rows = 32, .block_k = 64, .stages = 2, .blocks_sm = 2},   // D <= 128
    {.warps_q = 4, .warp_rows = 32, .block_k = 32, .stages = 2, .blocks_sm = 2},
    {.warps_q = 8, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 1},  // D <= 256
    {.warps_q = 8, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1},
    {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1},
    {.warps_q = 4, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
    {.warps_q = 2, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
};

// fp32: three products for one, and twice the bytes.
constexpr MmaConfig kManyRowsF32[] = {
    {.warps_q = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 2},  // D <= 64
    {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 2},  // D <= 128
    {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1},
    {.warps_q = 4, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
    {.warps_q = 2, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
};

// The first config that is valid and does not crowd the registers; else the last valid one.
template <size_t N>
MmaConfig first_valid(const MmaConfig (&list)[N], const CudaRequest& r, bool packed) {
  MmaConfig last = list[N - 1];
  for (const MmaConfig& candidate : list)
    for (bool stage_mask : {true, false}) {
      MmaConfig c = candidate;
      c.vector = r.layout.rows16;
      c.pack_gqa = packed;
      c.stage_mask = stage_mask;
      if (stage_mask && (r.problem.mask == MaskKind::none || !r.layout.mask16 || packed)) continue;
      if (*invalid_reason(c, r.problem, r.arch) != '\0') continue;
      const int registers = registers_of(c, r.problem, r.arch);
      if (registers <= 255 && registers * c.threads() * c.blocks_sm <= 65536) return c;
      last = c;
    }
  last.vector = r.layout.rows16;
  last.pack_gqa = packed;
  return last;
}

size_t part_bytes(const Problem& p) {
  return size_t(p.batch * p.heads_q * p.seq_q) * size_t(round_up(p.dim_v, 16) + 2) * sizeof(float);
}

// fp32: K and V as hi and lo halves, tile by tile, with their exponents (kernels/sm80/mma_f32.cuh).
size_t operand_bytes_of(const Problem& p, const MmaConfig& c) {
  return size_t(p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k)) *
         size_t(split_tile_bytes(c, p));
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Parts of the key range: as many as give every multiprocessor a block, when there are fewer tiles.
int splits_of(const CudaRequest& r, const MmaConfig& c) {
  const Problem& p = r.problem;
  if (p.batch_invariant) return 1;  // the number of parts would depend on the batch
  const int64_t tiles = std::max<int64_t>(tiles_of(p, c), 1);
  const int64_t most = ceil_div(p.seq_k, c.block_k) / kMinSplitTiles;
  return int(std::clamp<int64_t>(r.arch.sms / tiles, 1, std::clamp<int64_t>(most, 1, 256)));
}

}  // namespace

MmaConfig default_mma_config(const CudaRequest& r) {
  const Problem& p = r.problem;
  // What depends on the size of the batch would let neighbours change a sequence's bits.
  const bool packed = p.group() > 1 && p.seq_q * p.group() <= 64;
  MmaConfig c;
  if (rows_of(p, packed) <= 16) {
    c = first_valid(kFewRows, r, packed);
  } else if (p.dtype == DType::f32) {
    c = first_valid(kManyRowsF32, r, packed);
  } else {
    c = first_valid(kManyRows, r, packed);
    if ((!p.batch_invariant && tiles_of(p, c) < r.arch.sms) || rows_of(p, packed) <= 64)
      c = first_valid(kSmallGrid, r, packed);
  }
  const int splits = splits_of(r, c);
  const size_t needed = part_bytes(p) * size_t(splits) +
                        (p.dtype == DType::f32 ? aligned(operand_bytes_of(p, c)) : 0);
  c.split_kv = splits > 1 && needed <= r.workspace_bytes;
  return c;
}

int64_t mma_blocks(const CudaRequest& r, const MmaConfig& c) {
  const Problem& p = r.problem;
  int64_t blocks = tiles_of(p, c) * (c.split_kv ? splits_of(r, c) : 1);
  if (c.split_kv) blocks = std::max(blocks, p.batch * p.heads_q * p.seq_q);
  if (p.dtype == DType::f32)
    blocks = std::max(blocks, p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k));
  return blocks;
}

// Under a causal limit the long tiles of many heads go first; without one, heads follow each other.
BlockDivisors block_divisors(const Problem& p, int block_q, bool packed, int splits,
                             int64_t group_bytes) {
  const int64_t heads = std::max<int64_t>(p.batch * (packed ? p.heads_kv : p.heads_q), 1);
  const int64_t head_bytes = std::max<int64_t>(
      p.seq_k * (p.dim + p.dim_v) * operand_bytes(p.dtype) / (packed ? 1 : p.group()), 1);
  int64_t head_group = p.causal ? std::clamp<int64_t>(group_bytes / head_bytes, 1, heads) : 1;
  while (heads % head_group != 0) --head_group;  // groups of one size: the kernel divides by it
  const int64_t tiles_of_head = std::max<int64_t>(ceil_div(rows_of(p, packed), block_q), 1);
  return {Divisor(uint32_t(splits)), Divisor(uint32_t(head_group * tiles_of_head)),
          Divisor(uint32_t(head_group)), Divisor(uint32_t(packed ? p.heads_kv : p.heads_q)),
          Divisor(uint32_t(p.group()))};
}

jit::Plan mma_plan(const CudaRequest& r, const MmaConfig& c) {
  const Problem& p = r.problem;
  jit::Plan plan;
  plan.id = cuda_problem_id(p, r.arch) + "/" + to_string(jit::Config(c));
  plan.spec = {kernel_key(p), c, r.score_mod, r.mask_mod, r.arch};
  plan.splits = c.split_kv ? std::max(splits_of(r, c), 2) : 1;

  plan.divisors = block_divisors(p, c.block_q(), c.pack_gqa, plan.splits, kGroupBytes);

  if (p.dtype == DType::f32) {
    const int64_t tiles = p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k);
    plan.workspace_bytes = aligned(operand_bytes_of(p, c));
    if (tiles > 0) plan.launches.push_back({"attune_split", uint32_t(tiles), kSplitThreads, 0});
  }
  const bool early = r.arch.cc >= 90;
  plan.launches.push_back({"attune_mma", uint32_t(tiles_of(p, c) * plan.splits),
                           uint32_t(c.threads()), uint32_t(smem_bytes(c, p)),
                           early && !plan.launches.empty()});
  if (c.split_kv) {
    plan.workspace_bytes += part_bytes(p) * size_t(plan.splits);
    plan.launches.push_back(
        {"attune_combine", uint32_t(p.batch * p.heads_q * p.seq_q), kCombineThreads, 0, early});
  }
  return plan;
}

}  // namespace attune
