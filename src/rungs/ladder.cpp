#include "src/rungs/ladder.hpp"

#include <algorithm>

namespace attune {

bool LadderRung::possible(std::span<const Request> requests, std::string_view field,
                          int value) const {
  return field != "vector" || value == 0 ||
         std::all_of(requests.begin(), requests.end(),
                     [](const Request& r) { return r.layout.rows16; });
}

// What the sizes of the call forbid; what they do not decide is invalid_reason's.
std::string LadderRung::typed_cannot_run(const Request& r, const LadderConfig& c) const {
  std::string reason = too_long(r.problem);
  if (!reason.empty()) return reason;
  for (const auto& [entry, blocks] : grids(r.problem, c))
    if (reason = too_many_blocks(blocks); !reason.empty()) return reason;
  if (workspace(r.problem) == SIZE_MAX)
    return "the scores would need more memory than there are addresses";
  return "";
}

std::string LadderRung::typed_misfit(const Request& r, const LadderConfig& c) const {
  return c.vector && !r.layout.rows16 ? "its 16-byte loads need aligned rows" : "";
}

Plan LadderRung::typed_plan(const Request& r, const LadderConfig& c) const {
  Plan plan = plan_of_unit(r, erased(c));
  for (const auto& [entry, blocks] : grids(r.problem, c))
    if (blocks > 0)  // no keys: no scores to compute
      plan.launches.push_back({entry, uint32_t(blocks), uint32_t(block_threads(c)),
                               uint32_t(smem_bytes(c, r.problem))});
  plan.workspace_bytes = workspace(r.problem);
  return plan;
}

// As many as shared memory has room for, up to four blocks: registers allow few more.
int LadderRung::typed_warps(const LadderConfig& c, int64_t smem_of_block, const Arch& arch) const {
  const int64_t room = arch.smem_sm / (smem_of_block + 1024);
  return int(block_threads(c) / 32 * std::clamp<int64_t>(room, 1, 4));
}

}  // namespace attune
