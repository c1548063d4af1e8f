// Hopper's rung: TMA, wgmma, warp specialisation. Where the numbers come from: docs/notes.
#include "src/rungs/wgmma.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "src/rungs/mma.hpp"
#include "src/rungs/registry.hpp"
#include "src/rungs/samples.hpp"
#include "src/rungs/wgmma_defaults.hpp"

namespace attune {
namespace {

using C = WgmmaChoice;
constexpr int kWarpgroups[] = {1, 2, 3, 4};
constexpr int kBlockK[] = {32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192};
constexpr int kStages[] = {1, 2, 3, 4, 5, 6};
constexpr int kQBuffers[] = {1, 2};
constexpr int kTurns[] = {kNoTurn, kProductTurn, kExpTurn};
constexpr int kEarlyExps[] = {0, 2, 4, 6, 8};
constexpr int kSchedules[] = {kGrid, kPersistent, kDynamic};
constexpr int kGroupMb[] = {4, 8, 16, 32};
constexpr int kProducerRegisters[] = {24, 32, 40, 56};
constexpr int kThree[] = {0, 1, 2};
constexpr const char* kMaxima[] = {"RowMaxima::exact", "RowMaxima::lazy", "RowMaxima::first"};
constexpr const char* kSums[] = {"RowSums::fp32", "RowSums::rounded", "RowSums::tensor"};
constexpr const char* kMaskPaths[] = {"MaskPath::direct", "MaskPath::staged",
                                      "MaskPath::staged_late"};

constexpr auto kTable = table<C>({
    number<C, &C::warpgroups>(
        "warpgroups", "wg",
        {kWarpgroups, "warps", Level::hardware, false,
         "groups of four warps that compute, 64 query rows each: more share a tile of K and V"}),
    number<C, &C::block_k>("block_k", "bk",
                           {kBlockK, "block", Level::hardware, false,
                            "keys of a tile: one step of the online softmax"}),
    number<C, &C::stages>("stages", "st",
                          {kStages, "stages", Level::hardware, false,
                           "tiles of K and of V in shared memory, on their way or in use"}),
    number<C, &C::q_buffers>("q_buffers", "qb",
                             {kQBuffers, "stages", Level::hardware, false,
                              "2: the next rows' Q comes while these are computed"}),
    flag<C, &C::flat>("flat", "fl", "pipeline", Level::implementation, false,
                      "the next rows' first QK runs beside these rows' last PV"),
    number<C, &C::turn>("turn", "tu",
                        {kTurns, "turns", Level::hardware, false,
                         "what warpgroups take turns at: nothing, products, exponentials"}),
    choice<C, &C::maxima>(
        "maxima", "mx", kMaxima,
        {kThree, "maxima", Level::algorithm, true,
         "what is taken off a row's scores: its largest so far; one that stays while the largest "
         "grows by less than 2^8; its first for all of the row, while sums allow"}),
    choice<C, &C::sums>("sums", "su", kSums,
                        {kThree, "softmax", Level::implementation, false,
                         "row sums: of the weights in fp32; of rounded weights in fp32; of rounded "
                         "weights by tensor cores, with a column of ones beside V"}),
    number<C, &C::early_exps>("early_exps", "ee",
                              {kEarlyExps, "exponentials", Level::hardware, false,
                               "eighths of the exponentials that come before the wait for PV"}),
    number<C, &C::schedule>(
        "schedule", "sc",
        {kSchedules, "schedule", Level::hardware, false,
         "a block a tile of rows; blocks that take every n-th; that take the next one"}),
    of_plan(number<C, &C::group_mb>(
        "group_mb", "l2",
        {kGroupMb, "schedule", Level::hardware, false,
         "megabytes of K and V whose heads run together, so that they stay in the L2"})),
    number<C, &C::producer_registers>(
        "producer_registers", "pr",
        {kProducerRegisters, "registers", Level::hardware, false,
         "registers of a thread that brings tiles; what is left is the consumers'"}),
    optional(choice<C, &C::mask_path>(
        "mask_path", "mp", kMaskPaths,
        {kThree, "staging", Level::implementation, false,
         "the mask from where it is; through shared memory, read while products are computed; or "
         "read after them"})),
    optional(flag<C, &C::pack_gqa>("pack_gqa", "pg", "packing", Level::implementation, true,
                                   "the query heads that share keys share a tile")),
    settled<C, &C::copy>("copy"),
});
static_assert(kTable.fields.size() == member_count<WgmmaConfig>() + 1);

// ---- configs as version 0.1 printed them ----

// The first sixteen were always printed, the others where they were set.
constexpr const char* kOlderTags[] = {"wg", "bk", "st", "qb", "ov", "fl", "tu", "lz",
                                      "ts", "po", "ee", "sc", "sk", "l2", "pr", "sm",
                                      "lm", "pg", "fm", "rs", "cp", "cl"};
constexpr size_t kOlderPrinted = 16;

// -1: not printed, or not as it was.
int older_value(std::string_view* text, const char* tag) {
  const std::string head = std::string(".") + tag;
  int value = -1;
  if (!text->starts_with(head)) return value;
  const char* digits = text->data() + head.size();
  const auto [end, error] = std::from_chars(digits, text->data() + text->size(), value);
  if (error != std::errc() || std::to_string(value) != std::string_view(digits, end)) return -1;
  text->remove_prefix(size_t(end - text->data()));
  return value;
}

bool read_older_config(std::string_view rest, C* c) {
  int v[std::size(kOlderTags)];
  for (size_t i = 0; i < std::size(kOlderTags); ++i) {
    v[i] = older_value(&rest, kOlderTags[i]);
    if (v[i] < 0 && i < kOlderPrinted) return false;
  }
  const auto [wg, bk, st, qb, ov, fl, tu, lz, ts, po, ee, sc, sk, l2, pr, sm, lm, pg, fm, rs, cp,
              cl] = v;
  // No kernel has these any more: no product beside PV, polynomials, all tiles, pairs of blocks.
  if (ov != 1 || po != 0 || sk != 1 || cl > 1) return false;
  if (!rest.empty() || (fm == 1 && lz == 0) || (rs == 1 && ts == 1) || (lm == 1 && sm == 0))
    return false;
  *c = {
      {.warpgroups = wg, .block_k = bk, .stages = st, .q_buffers = qb, .flat = fl == 1, .turn = tu},
      l2};
  c->maxima = fm == 1 ? RowMaxima::first : lz == 1 ? RowMaxima::lazy : RowMaxima::exact;
  c->sums = ts == 1 ? RowSums::tensor : rs == 1 ? RowSums::rounded : RowSums::fp32;
  c->early_exps = ee, c->schedule = sc, c->producer_registers = pr;
  c->mask_path = lm == 1 ? MaskPath::staged_late : sm == 1 ? MaskPath::staged : MaskPath::direct;
  c->pack_gqa = pg == 1;
  return true;  // how tensors are copied follows from the call
}

// ---- plans ----

// Of K and V in the workspace.
int64_t split_tiles(const Problem& p, const C& c) {
  return p.batch * p.heads_kv * ceil_div(p.seq_k, c.block_k);
}

int64_t tiles_of(const Problem& p, const C& c) {
  if (c.pack_gqa) return p.batch * p.heads_kv * ceil_div(p.seq_q * p.group(), c.block_q());
  return p.batch * p.heads_q * ceil_div(p.seq_q, c.block_q());
}

// In panels of 128 bytes. fp32: K and V are split before, and O goes without TMA.
std::vector<cuda::Map> maps_of(const Problem& p, const C& c) {
  using cuda::Map, cuda::Operand;
  const Map::Order order = c.pack_gqa ? Map::Order::packed : Map::Order::rows;
  const uint32_t columns = uint32_t(panel_bytes(1) / element_bytes(p.dtype));
  const uint32_t keys = uint32_t(c.block_k);
  std::vector<Map> maps = {{Operand::q, order, columns, 64}};
  if (p.dtype == DType::f32) return maps;
  maps.push_back({Operand::k, Map::Order::rows, columns, keys});
  maps.push_back({Operand::v, Map::Order::rows, columns, keys});
  maps.push_back({Operand::out, order, columns, 64});
  if (c.stages_mask())
    maps.push_back({Operand::mask, Map::Order::mask, uint32_t(mask_tile(c, p).keys), 64});
  return maps;
}

BlockDivisors divisors_of(const Problem& p, const C& c) {
  return block_divisors(p, c.block_q(), c.pack_gqa, 1, int64_t{c.group_mb} << 20);
}

// Where it reads what lies about in memory element by element, or has too few rows. And where it
// copies tiles element by element. Of fp32 it stages no mask; and with fewer tiles than half of the
// multiprocessors, mma, which can cut the keys into parts, has more of them at work.
bool mma_is_faster(const Request& r) {
  const Problem& p = r.problem;
  const bool split = p.dtype == DType::f32;
  const bool scattered = p.mask != MaskKind::none && (split || !r.layout.mask16);
  const bool small_cells =
      p.block_mask_q != 0 &&
      (split || std::min(p.block_mask_q, p.block_mask_k) < 16 || features_of(p) > 4);
  // Packed, a few queries fill tiles; where these are few, mma cuts the keys among blocks.
  const int64_t tiles = p.batch * p.heads_kv * ceil_div(p.seq_q * p.group(), 64);
  const bool few_rows = p.seq_q < 64 && !(wgmma_packs_heads(p) && 2 * tiles >= r.arch.sms);
  const bool few = split && p.batch * p.heads_q * ceil_div(p.seq_q, 64) < r.arch.sms / 2;
  return small_cells || scattered || few_rows || few || (!r.layout.tma() && r.layout.step < 4);
}

// Tensors that TMA cannot reach: head dimensions, and how much of a row is copied at once.
constexpr struct {
  int dim, step;
} kCopied[] = {{64, 16}, {128, 16}, {256, 16}, {100, 8}, {34, 4}, {33, 2}, {128, 2}, {256, 2}};

class Wgmma final : public RungOf<C> {
 public:
  constexpr Wgmma()
      : RungOf({.name = "wgmma",
                .mode = ATTUNE_WGMMA,
                .meaning = "tensor cores that run beside everything else, tiles by TMA",
                .type = "WgmmaConfig",
                .least_cc = 90,
                .most_cc = 90,
                .tensor_cores = true,
                .fields = kTable.fields}) {}

  std::span<const Member<C>> members() const override { return kTable.members; }
  int rank(const Request& r) const override { return mma_is_faster(r) ? 35 : 50; }

  std::string refusal(const Request& r) const override {
    const bool split = r.problem.dtype == DType::f32;
    if (!runs_on(r.arch.cc))
      return "needs compute capability 9.0: its instructions exist there alone";
    if (split && r.problem.strict_fp32) return "strict_fp32 keeps fp32 on CUDA cores";
    if (split && !r.layout.rows16) return "TMA needs rows that start at multiples of 16 bytes";
    if (split && !r.layout.forward)
      return "TMA needs tensors that neither repeat nor run backwards";
    return r.problem.batch_invariant ? "not batch-invariant" : "";
  }

  C typed_standard(const Request& r) const override { return wgmma_standard(r); }

  void settle(const Request& r, C* c) const override {
    c->copy = r.layout.tma() ? 0 : r.layout.step;
    if (r.problem.group() == 1) c->pack_gqa = false;
  }

  bool read_older(std::string_view text, Config* config) const override {
    C c;
    if (!read_older_config(text.substr(std::string_view(name).size()), &c)) return false;
    *config = erased(c);
    return true;
  }

  std::string typed_cannot_run(const Request& r, const C& c) const override {
    if (std::string reason = too_long(r.problem); !reason.empty()) return reason;
    if (r.problem.seq_k == 0) return "there are no keys";
    const int64_t split = r.problem.dtype == DType::f32 ? 2 * split_tiles(r.problem, c) : 0;
    return too_many_blocks(std::max(tiles_of(r.problem, c), split));
  }

  std::string typed_misfit(const Request& r, const C& c) const override {
    // What was tuned with tiles that come by TMA was not tuned for copies.
    const Layout best = layout_of(r.problem, {});
    if (best.tma() && !r.layout.tma()) return "TMA needs aligned rows, one after another";
    if (r.layout.step < best.step) return "its copies need aligned rows";
    return c.stages_mask() && !r.layout.mask16 ? "its staged mask needs aligned rows" : "";
  }

  Plan typed_plan(const Request& r, const C& c) const override {
    const Problem& p = r.problem;
    Plan plan = plan_of_unit(r, erased(c));
    plan.blocks.divisors = divisors_of(p, c);
    plan.blocks.tiles = uint32_t(tiles_of(p, c));
    if (c.tma()) plan.maps = maps_of(p, c);
    const bool split = p.dtype == DType::f32;
    if (split) {  // the pre-pass sets the counter
      const int64_t tiles = split_tiles(p, c);
      plan.workspace_bytes = kCounterBytes + size_t(tiles) * size_t(split_tile_bytes(c, p));
      plan.launches.push_back({"attune_split", uint32_t(2 * tiles), kSplitThreads, 0});
    } else if (c.schedule == kDynamic) {
      plan.clears = {{0, sizeof(uint32_t)}};
      plan.workspace_bytes = kCounterBytes;
    }
    // Dealt in pairs, of which one may be missing, a block finds no tile in half of its turns.
    const uint32_t least = uint32_t(ceil_div(plan.blocks.tiles, kMostTiles / 2));
    const uint32_t fit = std::max(uint32_t(r.arch.sms), least);
    const uint32_t blocks =
        c.schedule == kGrid ? plan.blocks.tiles : std::min(plan.blocks.tiles, fit);
    plan.launches.push_back(
        {"attune_wgmma", blocks, uint32_t(c.threads()), uint32_t(smem_bytes(c, p)), split, true});
    return plan;
  }

  Unit typed_unit(const Problem& key, const C& c) const override {
    constexpr const char* kBounds = "kConfig.threads(), 1";
    Unit unit;
    if (key.dtype == DType::f32)
      unit = {{"sm90/wgmma_f32.cuh"},
              {{"attune_split", "split_for_wgmma", "kSplitThreads"},
               {"attune_wgmma", "wgmma_f32_forward", kBounds, true}}};
    else
      unit = {{"sm90/wgmma.cuh"}, {{"attune_wgmma", "wgmma_forward", kBounds, true}}};
    const int columns = (key.dim_v + 7) / 8 * 8 + (c.sums == RowSums::tensor ? 8 : 0);
    const DType operand = key.dtype == DType::bf16 ? DType::bf16 : DType::f16;
    unit.products = {{c.block_k, operand, false}, {columns, operand, true}};
    return unit;
  }

  // It has a config of its own for short rows, limits cost it other registers, and what TMA cannot
  // reach takes other copies.
  std::vector<Request> ships(const Arch& arch) const override {
    std::vector<Request> requests = common_samples(arch);
    std::erase_if(requests, [](const Request& r) { return !r.layout.tma(); });
    for (Request& r : feature_samples(DType::f32, arch)) requests.push_back(std::move(r));
    for (int dim : {64, 96, 128, 192, 256})
      for (int seq : {512, 2048})
        for (const Limit limit : limit_samples())
          for (DType dtype : {DType::f16, DType::f32}) {
            Problem p = sample_problem(dtype, dim);
            p.seq_q = p.seq_k = seq;
            limit(&p);
            requests.push_back(sample_request(p, arch, true));
          }
    for (const auto& copied : kCopied)
      for (size_t i = 0; i < (copied.dim == 128 ? limit_samples().size() : 2); ++i) {
        Problem p = sample_problem(DType::bf16, copied.dim);
        limit_samples()[i](&p);
        requests.push_back(sample_request(p, arch, false));
        requests.back().layout.step = copied.step;
      }
    for (DType dtype : {DType::bf16, DType::f32})
      for (int dim : {64, 128, 256}) {
        Problem few = sample_problem(dtype, dim);
        few.batch = 1;
        requests.push_back(sample_request(few, arch, true));
      }
    return requests;
  }

  std::vector<DefaultCall> default_calls(const Arch& arch) const override {
    return wgmma_default_calls(arch);
  }

  bool possible(std::span<const Request> requests, std::string_view field,
                int value) const override {
    const auto all = [&](auto holds) {
      return std::all_of(requests.begin(), requests.end(), holds);
    };
    const auto half = [](const Request& r) { return r.problem.dtype != DType::f32; };
    if (field == "group_mb")  // heads run together under a causal limit alone
      return value == C{}.group_mb ||
             std::any_of(requests.begin(), requests.end(),
                         [](const Request& r) { return r.problem.causal; });
    if (field == "producer_registers") return by_tma(requests) || value == kCopyRegisters;
    if (value == 0) return true;
    if (field == "mask_path")
      return all(
          [](const Request& r) { return r.layout.mask16 && r.problem.mask != MaskKind::none; });
    if (field == "maxima" && RowMaxima(value) == RowMaxima::first)
      return by_tma(requests) &&
             all([&](const Request& r) { return half(r) && features_of(r.problem) == 0; });
    if (field == "maxima") return all(half);
    if (field == "sums")
      return all([&](const Request& r) { return half(r) && !r.problem.lse && !r.problem.dropout; });
    if (field == "pack_gqa")
      return std::any_of(requests.begin(), requests.end(),
                         [](const Request& r) { return r.problem.group() > 1; });
    return true;
  }

  bool typed_same(const Request& r, const C& a, const C& b) const override {
    const WgmmaConfig &x = a, &y = b;
    return x == y && divisors_of(r.problem, a).heads_of_group.divisor ==
                         divisors_of(r.problem, b).heads_of_group.divisor;
  }

  int typed_warps(const C& c, int64_t, const Arch&) const override { return c.threads() / 32; }

 private:
  static bool by_tma(std::span<const Request> requests) {
    return std::all_of(requests.begin(), requests.end(),
                       [](const Request& r) { return r.layout.tma(); });
  }
};

constinit const Wgmma kWgmma;

}  // namespace

const Rung& wgmma_rung() { return kWgmma; }

}  // namespace attune
