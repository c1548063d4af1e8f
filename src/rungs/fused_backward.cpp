// The backward pass on CUDA cores: scores are computed anew, and never leave the chip.
#include "src/rungs/fused_backward.hpp"

#include <algorithm>

#include "kernels/ladder/backward_config.h"
#include "src/rungs/registry.hpp"
#include "src/rungs/samples.hpp"
#include "src/rungs/typed.hpp"

namespace attune {
namespace {

using C = BackwardConfig;
// Two blocks a multiprocessor: left to itself, the compiler makes room for more, and spills.
constexpr const char* kBounds = "kBackwardThreads, 2";
constexpr const char* kParts[] = {"BackwardPart::gradients", "BackwardPart::dmask"};
constexpr auto kTable = table<C, 4>({
    settled<C, &C::part>("part", 0, kParts),
    number<C, &C::block>("block", "b"),
    number<C, &C::step>("step", "s"),
    choice<C, &C::vector>("vector", "v", kFalseTrue, {}),
});
static_assert(kTable.fields.size() == member_count<C>());

// 0 where it is not asked for.
int64_t dmask_blocks(const Request& r, const C& c) {
  const auto& n = r.wanted.dmask;
  return n[0] * n[1] * ceil_div(n[2], c.block) * ceil_div(n[3], c.step);
}

class FusedBackward final : public RungOf<C> {
 public:
  constexpr FusedBackward()
      : RungOf({.name = "fused",
                .mode = ATTUNE_FUSED,
                .meaning = "scores are computed anew, and never leave the chip",
                .type = "BackwardConfig",
                .fields = kTable.fields,
                .pass = Pass::backward}) {}

  std::span<const Member<C>> members() const override { return kTable.members; }
  int rank(const Request&) const override { return 30; }
  std::string refusal(const Request& r) const override {
    const std::string reason = needs_capability(r, least_cc);
    return reason.empty() ? backward_refusal(r) : reason;
  }
  // As many rows as registers and shared memory have room for. Not measured.
  C typed_standard(const Request& r) const override {
    const Problem& p = r.problem;
    // Features that bring much code into each of a thread's scores.
    const bool small = p.softcap || p.dropout || p.block_mask_q != 0 || p.mask_mod;
    constexpr struct { int block, step; } kTiles[] = {{64, 32}, {32, 32}, {32, 16}, {16, 16}};
    C c{.vector = r.layout.rows16};
    for (const auto& tile : kTiles) {
      if (tile.block > 32 && small) continue;
      c.block = tile.block;
      c.step = tile.step;
      if (*invalid_reason(c, p, r.arch) == '\0') break;
    }
    return c;
  }
  std::string typed_cannot_run(const Request& r, const C& c) const override {
    std::string reason = too_long(r.problem);
    if (reason.empty()) reason = too_many_rows(r);
    for (const auto& [entry, blocks] : grids(r, c))
      if (reason.empty()) reason = too_many_blocks(blocks);
    return reason;
  }
  std::string typed_misfit(const Request& r, const C& c) const override {
    return c.vector && !r.layout.rows16 ? "its 16-byte loads need aligned rows" : "";
  }
  Plan typed_plan(const Request& r, const C& c) const override {
    Plan plan = plan_of_unit(r, erased(c));
    plan.workspace_bytes = state_bytes(r.problem);
    add_states(r, 0, &plan);
    for (const auto& [entry, blocks] : grids(r, c))
      if (blocks > 0)
        plan.launches.push_back({entry, uint32_t(blocks), uint32_t(kBackwardThreads),
                                 uint32_t(smem_bytes(c, r.problem))});
    add_dsinks(r, 0, &plan);
    add_dmask(r, &plan);
    return plan;
  }
  Unit typed_unit(const Problem&, const C& c) const override {
    if (c.part == BackwardPart::dmask)
      return {{"ladder/fused_dmask.cuh"}, {{"attune_dmask", "fused_dmask", kBounds}}};
    Unit unit{{kStateHeader, "ladder/fused_backward.cuh"},
              {{"attune_dq", "fused_dq", kBounds}, {"attune_dkv", "fused_dkv", kBounds}}};
    unit.entries.insert(unit.entries.end(), std::begin(kStateEntries), std::end(kStateEntries));
    return unit;
  }
  std::vector<Request> ships(const Arch& arch) const override { return backward_samples(arch); }

  bool possible(std::span<const Request> requests, std::string_view field,
                int value) const override {
    return field != "vector" || value == 0 ||
           std::all_of(requests.begin(), requests.end(),
                       [](const Request& r) { return r.layout.rows16; });
  }
  int typed_warps(const C&, int64_t smem_of_block, const Arch& arch) const override {
    const int64_t room = arch.smem_sm / (smem_of_block + 1024);
    return int(kBackwardThreads / 32 * std::clamp<int64_t>(room, 1, 4));
  }

 private:
  // The kernels of what is asked for, and the blocks of each.
  static std::vector<std::pair<const char*, int64_t>> grids(const Request& r, const C& c) {
    const Problem& p = r.problem;
    std::vector<std::pair<const char*, int64_t>> list;
    if (r.wanted.dq)
      list.push_back({"attune_dq", p.batch * p.heads_q * ceil_div(p.seq_q, c.block)});
    if (r.wanted.dk || r.wanted.dv)
      list.push_back({"attune_dkv", p.batch * p.heads_kv * ceil_div(p.seq_k, c.block)});
    return list;
  }
};

constinit const FusedBackward kFusedBackward;

// The config of dMask's kernel, whatever rung the other gradients come from.
C dmask_config(const Request& r) {
  C c = kFusedBackward.typed_standard(r);
  c.part = BackwardPart::dmask;
  if (c.block > 32) c.block = 32;  // its sums are in double
  return c;
}

}  // namespace

const Rung& fused_backward_rung() { return kFusedBackward; }

std::string backward_refusal(const Request& r) {
  if (r.problem.score_mod) return "the derivative of score_mod is not known";
  if (!r.wanted.results)
    return "reads the forward pass's results, but out and lse are not both given";
  if (state_bytes(r.problem) == SIZE_MAX)
    return "the states of rows would need more memory than there are addresses";
  return "";
}

size_t state_bytes(const Problem& p) {
  size_t bytes = sizeof(RowState);
  for (int64_t n : {p.batch, p.heads_q, p.seq_q})
    if (__builtin_mul_overflow(bytes, size_t(n), &bytes)) return p.seq_q != 0 ? SIZE_MAX : 0;
  return bytes;
}

std::string too_many_rows(const Request& r) {
  const Problem& p = r.problem;
  std::string reason = too_many_blocks(ceil_div(p.batch * p.heads_q * p.seq_q, kStateRows));
  if (reason.empty()) reason = too_many_blocks(dmask_blocks(r, dmask_config(r)));
  return reason;
}

void add_states(const Request& r, size_t unit, Plan* plan) {
  const Problem& p = r.problem;
  const int64_t blocks = ceil_div(p.batch * p.heads_q * p.seq_q, kStateRows);
  if (blocks > 0)
    plan->launches.push_back(
        {.entry = "attune_states", .grid = uint32_t(blocks), .block = kStateThreads, .unit = unit});
}

void add_dsinks(const Request& r, size_t unit, Plan* plan) {
  if (r.wanted.dsinks && r.problem.heads_q > 0)
    plan->launches.push_back({.entry = "attune_dsinks",
                              .grid = uint32_t(r.problem.heads_q),
                              .block = kSinkThreads,
                              .unit = unit});
}

void add_dmask(const Request& r, Plan* plan) {
  const C c = dmask_config(r);
  const int64_t blocks = dmask_blocks(r, c);
  if (blocks == 0) return;
  plan->launches.push_back({.entry = "attune_dmask",
                            .grid = uint32_t(blocks),
                            .block = kBackwardThreads,
                            .smem = uint32_t(smem_bytes(c, r.problem)),
                            .unit = plan->units.size()});
  plan->units.push_back(plan_of_unit(r, kFusedBackward.erased(c)).units.front());
}

}  // namespace attune
