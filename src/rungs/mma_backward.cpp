// The backward pass on tensor cores: two walks, of which each owns what it sums. Where the numbers
// come from: registers and shared memory, counted; none is measured.
#include <algorithm>
#include <iterator>

#include "kernels/sm80/backward_config.h"
#include "src/rungs/defaults.hpp"
#include "src/rungs/fused_backward.hpp"
#include "src/rungs/registry.hpp"
#include "src/rungs/samples.hpp"
#include "src/rungs/typed.hpp"

namespace attune {
namespace {

using C = MmaBackwardConfig;
constexpr auto kTable = table<C>({
    number<C, &C::warps>("warps", "w"),
    number<C, &C::warp_keys>("warp_keys", "wk"),
    number<C, &C::warp_rows>("warp_rows", "wr"),
    number<C, &C::block_q>("block_q", "bq"),
    number<C, &C::block_k>("block_k", "bk"),
    number<C, &C::stages>("stages", "st"),
    number<C, &C::blocks_sm>("blocks_sm", "bs"),
    choice<C, &C::separate>("separate", "sp", kFalseTrue, {}),
    choice<C, &C::vector>("vector", "v", kFalseTrue, {}),
});
static_assert(kTable.fields.size() == member_count<C>());

// ---- defaults ----

using Default = DefaultRow<C>;
constexpr const char* kSource = "registers and shared memory; not measured";

// The first that is for the call and fits the GPU. Where a row says no head dimensions, they do.
constexpr Default kDefaults[] = {
    {{.wide = 64, .tile_rows = 128},
     {.warps = 4, .block_q = 64, .block_k = 64, .stages = 3, .blocks_sm = 2},
     kSource},
    {{.wide = 64},
     {.warps = 4, .warp_keys = 32, .warp_rows = 32, .block_q = 64, .block_k = 64, .blocks_sm = 2},
     kSource},
    {{.wide = 64}, {.warps = 8, .block_q = 64, .block_k = 64}, kSource},
    {{.wide = 128, .tile_rows = 128}, {.warps = 4}, kSource},
    {{.wide = 128}, {.warps = 8, .block_q = 64, .block_k = 64}, kSource},
    {{}, {.warps = 8}, kSource},
    {{}, {.warps = 4}, kSource},
    {{}, {.warps = 8, .separate = true}, kSource},
    {{}, {.warps = 4, .separate = true}, kSource},
    {{}, {.warps = 2, .separate = true}, kSource},
};

C choose(const Request& r) {
  C c;
  for (const Default& row : kDefaults) {
    // What depends on the size of the batch would let neighbours change a sequence's bits.
    if (row.when.tile_rows > 0 && r.problem.batch_invariant) continue;
    if (!is_for(row.when, r.problem, r.arch, false)) continue;
    c = row.config;
    c.vector = r.layout.rows16;
    if (*invalid_reason(c, r.problem, r.arch) == '\0') break;
  }
  return c;
}

class MmaBackward final : public RungOf<C> {
 public:
  constexpr MmaBackward()
      : RungOf({.name = "mma",
                .mode = ATTUNE_MMA,
                .meaning = "the same on tensor cores, with copies in the background",
                .type = "MmaBackwardConfig",
                .least_cc = 80,
                .tensor_cores = true,
                .fields = kTable.fields,
                .pass = Pass::backward}) {}

  std::span<const Member<C>> members() const override { return kTable.members; }
  int rank(const Request&) const override { return 40; }

  std::string refusal(const Request& r) const override {
    std::string reason = needs_capability(r, least_cc);
    if (reason.empty()) reason = backward_refusal(r);
    if (reason.empty() && r.problem.dtype == DType::f32) reason = "takes fp16 and bf16 only";
    return reason;
  }

  C typed_standard(const Request& r) const override { return choose(r); }

  std::string typed_cannot_run(const Request& r, const C& c) const override {
    std::string reason = too_long(r.problem);
    if (reason.empty()) reason = too_many_rows(r);
    if (reason.empty()) reason = too_many_blocks(blocks_of(r.problem, c, false));
    return reason.empty() ? too_many_blocks(blocks_of(r.problem, c, true)) : reason;
  }

  std::string typed_misfit(const Request& r, const C& c) const override {
    return c.vector && !r.layout.rows16 ? "its 16-byte copies need aligned rows" : "";
  }

  Plan typed_plan(const Request& r, const C& c) const override {
    Plan plan = plan_of_unit(r, erased(c));
    plan.workspace_bytes = state_bytes(r.problem);
    add_states(r, 0, &plan);
    // Before dQ's kernel finds some states anew, by its own arithmetic.
    add_dsinks(r, 0, &plan);
    add_dmask(r, &plan);
    const auto add = [&](const char* entry, bool keys) {
      const int64_t blocks = blocks_of(r.problem, c, keys);
      if (blocks > 0)
        plan.launches.push_back({entry, uint32_t(blocks), uint32_t(c.threads()),
                                 uint32_t(backward_smem_bytes(c, r.problem, keys))});
    };
    add("attune_mma_dq", false);  // where dQ is not asked for, for these states alone
    if (r.wanted.dk || r.wanted.dv) add("attune_mma_dkv", true);
    return plan;
  }

  Unit typed_unit(const Problem&, const C&) const override {
    constexpr const char* kBounds = "kConfig.threads(), kConfig.blocks_sm";
    Unit unit{{kStateHeader, "sm80/backward.cuh"},
              {{"attune_mma_dq", "mma_dq", kBounds}, {"attune_mma_dkv", "mma_dkv", kBounds}}};
    unit.entries.insert(unit.entries.end(), std::begin(kStateEntries), std::end(kStateEntries));
    return unit;
  }

  // And rows that are not aligned.
  std::vector<Request> ships(const Arch& arch) const override {
    std::vector<Request> requests = backward_samples(arch);
    for (const int dim : {64, 128, 256, 40}) {
      Problem p = sample_problem(DType::bf16, dim);
      p.pass = Pass::backward;
      p.lse = true;
      requests.push_back(sample_request(p, arch, false));
    }
    return requests;
  }

  bool possible(std::span<const Request> requests, std::string_view field,
                int value) const override {
    return field != "vector" || value == 0 ||
           std::all_of(requests.begin(), requests.end(),
                       [](const Request& r) { return r.layout.rows16; });
  }
  int typed_warps(const C& c, int64_t, const Arch&) const override { return c.warps * c.blocks_sm; }

 private:
  static int64_t blocks_of(const Problem& p, const C& c, bool keys) {
    if (!keys) return p.batch * p.heads_q * ceil_div(p.seq_q, c.own(false));
    return p.batch * p.heads_kv * ceil_div(p.seq_k, c.own(true)) * (c.separate ? 2 : 1);
  }
};

constinit const MmaBackward kMmaBackward;

}  // namespace

const Rung& mma_backward_rung() { return kMmaBackward; }

}  // namespace attune
