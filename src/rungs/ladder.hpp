// What naive, tiled and fused share: CUDA cores, one config type, no tensor-core instruction.
#pragma once

#include <utility>

#include "kernels/ladder/config.h"
#include "src/rungs/typed.hpp"

namespace attune {

class LadderRung : public RungOf<LadderConfig> {
 public:
  std::string refusal(const Request& r) const override { return needs_capability(r, least_cc); }
  bool possible(std::span<const Request> requests, std::string_view field,
                int value) const override;
  std::string typed_cannot_run(const Request& r, const LadderConfig& c) const override;
  std::string typed_misfit(const Request& r, const LadderConfig& c) const override;
  Plan typed_plan(const Request& r, const LadderConfig& c) const override;
  int typed_warps(const LadderConfig& c, int64_t smem, const Arch& arch) const override;

  // The kernels in the order of their launches, and the blocks of each.
  virtual std::vector<std::pair<const char*, int64_t>> grids(const Problem& p,
                                                             const LadderConfig& c) const = 0;
  virtual size_t workspace(const Problem& p) const {
    (void)p;
    return 0;
  }

 protected:
  using RungOf::RungOf;
  ~LadderRung() = default;
};

inline constexpr const char* kLadderBounds = "block_threads(kConfig)";
inline constexpr const char* kLadderNames[] = {"Ladder::naive", "Ladder::tiled", "Ladder::fused"};
inline constexpr Row<LadderConfig> kLadderKind =
    settled<LadderConfig, &LadderConfig::rung>("rung", 0, kLadderNames);

// A table whose first row is kLadderKind, as it is for one of the three.
template <size_t N>
constexpr Table<LadderConfig, N> table_of(Ladder kind, const Row<LadderConfig> (&rows)[N]) {
  static_assert(N == member_count<LadderConfig>());
  Table<LadderConfig, N> t = table(rows);
  t.fields[0].standard = int(kind);
  return t;
}
// For naive and tiled, whose kernels have one size of tile.
constexpr auto fixed_table_of(Ladder kind) {
  return table_of(kind,
                  {kLadderKind, number<LadderConfig, &LadderConfig::block_q>("block_q", "bq"),
                   number<LadderConfig, &LadderConfig::block_k>("block_k", "bk"),
                   choice<LadderConfig, &LadderConfig::vector>("vector", "v", kFalseTrue, {})});
}

}  // namespace attune
