// FlashAttention's walk on tensor cores, by mma.sync. Where the numbers come from:
// docs/notes/2026-11-15-mma-kernel.md.
#include "src/rungs/mma.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "src/rungs/registry.hpp"
#include "src/rungs/samples.hpp"

namespace attune {
namespace {

using C = MmaConfig;
constexpr int kWarpsQ[] = {1, 2, 3, 4, 6, 8};
constexpr int kWarpsK[] = {1, 2, 4, 8};
constexpr int kWarpRows[] = {16, 32};
constexpr int kBlockK[] = {16, 32, 48, 64, 80, 96, 112, 128};
constexpr int kStages[] = {2, 3, 4};
constexpr int kBlocksSm[] = {1, 2, 3, 4};

constexpr auto kTable = table<C>({
    number<C, &C::warps_q>(
        "warps_q", "wq",
        {kWarpsQ, "warps", Level::hardware, false, "warps of a block along the query rows"}),
    number<C, &C::warps_k>(
        "warps_k", "wk",
        {kWarpsK, "warps", Level::hardware, false,
         "warps of a block along the keys of a tile, merged at the end: for few rows"}),
    number<C, &C::warp_rows>(
        "warp_rows", "wr",
        {kWarpRows, "warps", Level::hardware, false,
         "query rows of a warp: 32 reads K and V half as often, 16 takes fewer registers"}),
    number<C, &C::block_k>("block_k", "bk",
                           {kBlockK, "block", Level::hardware, false,
                            "keys of a tile: one step of the online softmax"}),
    number<C, &C::stages>("stages", "st",
                          {kStages, "stages", Level::hardware, false,
                           "tiles of K and V in shared memory, on their way or in use"}),
    number<C, &C::blocks_sm>(
        "blocks_sm", "bs",
        {kBlocksSm, "registers", Level::hardware, false,
         "blocks that a multiprocessor must hold: it caps the registers of a thread"}),
    flag<C, &C::q_registers>("q_registers", "qr", "staging", Level::implementation, false,
                             "Q stays in registers (1) or in shared memory (0)"),
    flag<C, &C::vector>("vector", "v", "vector", Level::implementation, false,
                        "copies of 16 bytes, asynchronous (1), or of one element (0)"),
    flag<C, &C::stage_mask>("stage_mask", "sm", "staging", Level::implementation, false,
                            "the mask comes through shared memory (1) or from where it is (0)"),
    flag<C, &C::pack_gqa>("pack_gqa", "pg", "packing", Level::implementation, true,
                          "the query heads that share keys share a tile"),
    flag<C, &C::split_kv>(
        "split_kv", "kv", "split", Level::algorithm, true,
        "the keys are cut into parts for blocks of their own, merged by a second kernel"),
});
static_assert(kTable.fields.size() == member_count<C>());

constexpr int64_t kGroupBytes = 30'000'000;  // of K and V that stay in the L2 of the larger GPUs
constexpr int kMinSplitTiles = 2;  // fewer tiles a part, and merging costs more than it buys

// Rows that one head, or the heads that share a key head, put into tiles.
int64_t rows_of(const Problem& p, bool packed) { return packed ? p.seq_q * p.group() : p.seq_q; }

int64_t tiles_of(const Problem& p, const C& c) {
  return p.batch * (c.pack_gqa ? p.heads_kv : p.heads_q) *
         ceil_div(rows_of(p, c.pack_gqa), c.block_q());
}

// ---- defaults ----

using Default = DefaultRow<C>;
constexpr const char* kSource = "docs/notes/2026-11-15-mma-kernel.md";

// Where a row says no head dimensions, the registers and the shared memory of the GPU do; wider
// than said, the config of a row fits no GPU.
// clang-format off
constexpr Default kFewRows[] = {
    {{}, {.warps_q = 1, .warps_k = 4, .warp_rows = 16, .block_k = 64, .stages = 3, .blocks_sm = 2},
     kSource},
    {{}, {.warps_q = 1, .warps_k = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 1},
     kSource},
    {{}, {.warps_q = 1, .warps_k = 2, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1},
     kSource},
    {{}, {.warps_q = 1, .warps_k = 1, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1},
     kSource},
};
constexpr Default kFewTiles[] = {
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 2}, kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1}, kSource},
};
constexpr Default kHalf[] = {
    {{.wide = 128}, {.warps_q = 4, .warp_rows = 32, .block_k = 128, .stages = 2, .blocks_sm = 2},
     kSource},
    {{.wide = 208}, {.warps_q = 4, .warp_rows = 32, .block_k = 64, .stages = 2, .blocks_sm = 2},
     kSource},
    {{}, {.warps_q = 4, .warp_rows = 32, .block_k = 32, .stages = 2, .blocks_sm = 2}, kSource},
    {{}, {.warps_q = 8, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 8, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 2, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1}, kSource},
};
// Three products for one, and twice the bytes.
constexpr Default kFp32[] = {
    {{.wide = 128}, {.warps_q = 4, .warp_rows = 16, .block_k = 64, .stages = 2, .blocks_sm = 2},
     kSource},
    {{.wide = 208}, {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 2},
     kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 32, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 4, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1}, kSource},
    {{}, {.warps_q = 2, .warp_rows = 16, .block_k = 16, .stages = 2, .blocks_sm = 1}, kSource},
};
// clang-format on

struct MmaDefaults {
  const char* name;
  std::span<const Default> rows;
};
enum class MmaCalls { few_rows, few_tiles, half, fp32 };  // the kinds that have a table each
constexpr MmaDefaults kDefaults[] = {{"up to 16 query rows", kFewRows},
                                     {"few tiles", kFewTiles},
                                     {"16 bits", kHalf},
                                     {"fp32", kFp32}};

// The row that a call takes, and the config that follows from both.
struct Choice {
  MmaCalls calls;
  const Default* row;
  C config;
};

int number_of(const Choice& choice) {  // counted through all tables
  size_t before = 0;
  for (size_t n = 0; n < size_t(choice.calls); ++n) before += kDefaults[n].rows.size();
  return int(before) + int(choice.row - kDefaults[size_t(choice.calls)].rows.data());
}

// The first row that is for the call, whose config is valid and does not crowd the registers; else
// the last whose config is valid.
Choice choose_from(MmaCalls calls, const Request& r, bool packed) {
  const std::span<const Default> rows = kDefaults[size_t(calls)].rows;
  Choice last{calls, &rows.back(), rows.back().config};
  for (const Default& row : rows)
    for (bool stage_mask : {true, false}) {
      C c = row.config;
      c.vector = r.layout.rows16;
      c.pack_gqa = packed;
      c.stage_mask = stage_mask;
      if (!is_for(row.when, r.problem, r.arch, false)) continue;
      if (stage_mask && (r.problem.mask == MaskKind::none || !r.layout.mask16 || packed)) continue;
      if (*invalid_reason(c, r.problem, r.arch) != '\0') continue;
      const int registers = registers_of(c, r.problem, r.arch);
      if (registers <= 255 && registers * c.threads() * c.blocks_sm <= 65536)
        return {calls, &row, c};
      last = {calls, &row, c};
    }
  last.config.vector = r.layout.rows16;
  last.config.pack_gqa = packed;
  return last;
}

size_t part_bytes(const Problem& p) {
  return size_t(p.batch * p.heads_q * p.seq_q) * size_t(round_up(p.dim_v, 16) + 2) * sizeof(float);
}

int64_t key_tiles(const Problem& p, const C& c) {
  return p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k);
}

// fp32: K and V as hi and lo halves, tile by tile, with their exponents (kernels/sm80/mma_f32.cuh).
size_t operand_bytes_of(const Problem& p, const C& c) {
  return size_t(key_tiles(p, c)) * size_t(split_tile_bytes(c, p));
}

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Parts of the key range: as many as give every multiprocessor a block, when there are fewer tiles.
int splits_of(const Request& r, const C& c) {
  const Problem& p = r.problem;
  if (p.batch_invariant) return 1;  // the number of parts would depend on the batch
  const int64_t tiles = std::max<int64_t>(tiles_of(p, c), 1);
  const int64_t most = ceil_div(p.seq_k, c.block_k) / kMinSplitTiles;
  return int(std::clamp<int64_t>(r.arch.sms / tiles, 1, std::clamp<int64_t>(most, 1, 256)));
}

int64_t blocks_of(const Request& r, const C& c) {
  const Problem& p = r.problem;
  int64_t blocks = tiles_of(p, c) * (c.split_kv ? splits_of(r, c) : 1);
  if (c.split_kv) blocks = std::max(blocks, p.batch * p.heads_q * p.seq_q);
  if (p.dtype == DType::f32) blocks = std::max(blocks, key_tiles(p, c));
  return blocks;
}

Choice choose(const Request& r) {
  const Problem& p = r.problem;
  // What depends on the size of the batch would let neighbours change a sequence's bits.
  const bool packed = p.group() > 1 && p.seq_q * p.group() <= 64;
  Choice choice;
  if (rows_of(p, packed) <= 16) {
    choice = choose_from(MmaCalls::few_rows, r, packed);
  } else if (p.dtype == DType::f32) {
    choice = choose_from(MmaCalls::fp32, r, packed);
  } else {
    choice = choose_from(MmaCalls::half, r, packed);
    if ((!p.batch_invariant && tiles_of(p, choice.config) < r.arch.sms) || rows_of(p, packed) <= 64)
      choice = choose_from(MmaCalls::few_tiles, r, packed);
  }
  C& c = choice.config;
  const int splits = splits_of(r, c);
  const size_t needed = part_bytes(p) * size_t(splits) +
                        (p.dtype == DType::f32 ? aligned(operand_bytes_of(p, c)) : 0);
  c.split_kv = splits > 1 && needed <= r.workspace_bytes;
  return choice;
}

// A plan cuts the keys for the sake of multiprocessors that would have no block, or a second wave
// of few.
bool can_split(const Request& r, const C& c) {
  return tiles_of(r.problem, c) < int64_t{2} * r.arch.sms &&
         ceil_div(r.problem.seq_k, c.block_k) >= 2;
}

class Mma final : public RungOf<C> {
 public:
  constexpr Mma()
      : RungOf({.name = "mma",
                .mode = ATTUNE_MMA,
                .meaning = "the same on tensor cores, with copies in the background",
                .type = "MmaConfig",
                .least_cc = 80,
                .tensor_cores = true,
                .fields = kTable.fields}) {}

  std::span<const Member<C>> members() const override { return kTable.members; }
  int rank(const Request&) const override { return 40; }

  std::string refusal(const Request& r) const override {
    if (r.problem.dtype == DType::f32 && r.problem.strict_fp32 && runs_on(r.arch.cc))
      return "strict_fp32 keeps fp32 on CUDA cores";
    return needs_capability(r, least_cc);
  }

  C typed_standard(const Request& r) const override { return choose(r).config; }

  void settle(const Request& r, C* c) const override {
    if (r.problem.group() == 1) c->pack_gqa = false;
  }

  std::string typed_cannot_run(const Request& r, const C& c) const override {
    if (c.split_kv && r.problem.batch_invariant)
      return "the number of parts would depend on the batch";
    const std::string reason = too_long(r.problem);
    return reason.empty() ? too_many_blocks(blocks_of(r, c)) : reason;
  }

  std::string typed_misfit(const Request& r, const C& c) const override {
    if (c.stage_mask && !r.layout.mask16) return "its staged mask needs aligned rows";
    return c.vector && !r.layout.rows16 ? "its 16-byte copies need aligned rows" : "";
  }

  Plan typed_plan(const Request& r, const C& c) const override {
    const Problem& p = r.problem;
    Plan plan = plan_of_unit(r, erased(c));
    plan.blocks.splits = c.split_kv ? std::max(splits_of(r, c), 2) : 1;
    plan.blocks.divisors =
        block_divisors(p, c.block_q(), c.pack_gqa, plan.blocks.splits, kGroupBytes);
    if (p.dtype == DType::f32) {
      const int64_t tiles = key_tiles(p, c);
      plan.workspace_bytes = aligned(operand_bytes_of(p, c));
      if (tiles > 0) plan.launches.push_back({"attune_split", uint32_t(tiles), kSplitThreads, 0});
    }
    const bool early = r.arch.cc >= 90;
    plan.launches.push_back({"attune_mma", uint32_t(tiles_of(p, c) * plan.blocks.splits),
                             uint32_t(c.threads()), uint32_t(smem_bytes(c, p)),
                             early && !plan.launches.empty()});
    if (c.split_kv) {
      plan.workspace_bytes += part_bytes(p) * size_t(plan.blocks.splits);
      plan.launches.push_back(
          {"attune_combine", uint32_t(p.batch * p.heads_q * p.seq_q), kCombineThreads, 0, early});
    }
    return plan;
  }

  Unit typed_unit(const Problem& key, const C& c) const override {
    constexpr const char* kBounds = "kConfig.threads(), kConfig.blocks_sm";
    Unit unit;
    if (key.dtype == DType::f32)
      unit = {{"sm80/mma_f32.cuh"},
              {{"attune_split", "split_operands", "kSplitThreads"},
               {"attune_mma", "mma_f32_forward", kBounds}}};
    else
      unit = {{"sm80/mma.cuh"}, {{"attune_mma", "mma_forward", kBounds}}};
    if (c.split_kv) {
      unit.headers.push_back("sm80/combine.cuh");
      unit.entries.push_back({"attune_combine", "mma_combine", "kCombineThreads"});
    }
    return unit;
  }

  // fp32 has kernels of its own for each feature; few tiles and decoding have configs of their own,
  // and training wants LSE.
  std::vector<Request> ships(const Arch& arch) const override {
    std::vector<Request> requests = common_samples(arch);
    for (Request& r : feature_samples(DType::f32, arch)) requests.push_back(std::move(r));
    for (DType dtype : {DType::bf16, DType::f32})
      for (int dim : {64, 128, 256}) {
        Problem few = sample_problem(dtype, dim);
        few.batch = 1;
        requests.push_back(sample_request(few, arch, true));
        Problem training = sample_problem(dtype, dim);
        training.lse = true;
        for (const bool causal : {false, true}) {
          training.causal = causal;
          requests.push_back(sample_request(training, arch, true));
        }
        few.heads_kv = 2;
        few.seq_q = 1;
        few.seq_k = 8192;
        requests.push_back(sample_request(few, arch, true));
        few.key_lengths = true;  // of a cache
        requests.push_back(sample_request(few, arch, true));
      }
    return requests;
  }

  // Contiguous tensors without features: what else a config depends on is the kernel's own
  // invalid_reason. fp16 takes the rows that bf16 does.
  std::vector<DefaultCall> default_calls(const Arch& arch) const override {
    std::vector<DefaultCall> calls;
    std::set<std::pair<const Default*, decltype(Config::values)>> seen;
    for (const DType dtype : {DType::bf16, DType::f32})
      for (int dim = 16; dim <= kMaxHeadDim; dim += 16)
        for (const int64_t rows : {1024, 48, 1})
          for (const int64_t batch : {64, 1}) {
            Problem p = sample_problem(dtype, dim);
            p.batch = batch, p.seq_q = rows;
            const Request r = sample_request(p, arch, true);
            const Choice choice = choose(r);
            if (*invalid_reason(choice.config, p, arch) != '\0') continue;
            if (seen.insert({choice.row, erased(choice.config).values}).second)
              calls.push_back({number_of(choice), kDefaults[size_t(choice.calls)].name,
                               to_string(choice.row->when) + ", where it fits", choice.row->source,
                               r});
          }
    return calls;
  }

  bool possible(std::span<const Request> requests, std::string_view field,
                int value) const override {
    if (value == 0 || field == "warps_q") return true;
    const auto all = [&](auto holds) {
      return std::all_of(requests.begin(), requests.end(), holds);
    };
    if (field == "vector") return all([](const Request& r) { return r.layout.rows16; });
    if (field == "stage_mask")
      return all(
          [](const Request& r) { return r.layout.mask16 && r.problem.mask != MaskKind::none; });
    if (field == "q_registers")
      return all([](const Request& r) { return r.problem.dtype != DType::f32; });
    if (field == "split_kv")
      return all([](const Request& r) { return !r.problem.batch_invariant; });
    if (field == "pack_gqa")
      return std::any_of(requests.begin(), requests.end(),
                         [](const Request& r) { return r.problem.group() > 1; });
    return true;
  }

  std::string pointless(std::span<const Request> requests, const Config& config) const override {
    const C c = typed(config);
    const auto splits = [&](const Request& r) { return can_split(r, c); };
    if (c.split_kv && std::none_of(requests.begin(), requests.end(), splits))
      return "there are blocks enough, or too few keys, for split_kv";
    return "";
  }

  int typed_warps(const C& c, int64_t, const Arch&) const override {
    return c.threads() / 32 * c.blocks_sm;
  }
};

constinit const Mma kMma;

}  // namespace

const Rung& mma_rung() { return kMma; }

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

}  // namespace attune
