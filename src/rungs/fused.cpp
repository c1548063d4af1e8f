// FlashAttention's walk on CUDA cores: scores never leave the chip.
#include "src/rungs/ladder.hpp"
#include "src/rungs/registry.hpp"

namespace attune {
namespace {

using C = LadderConfig;
constexpr int kBlockQ[] = {32, 64, 128};
constexpr int kBlockK[] = {16, 32, 64, 128};
constexpr auto kTable = table_of(
    Ladder::fused,
    {
        kLadderKind,
        number<C, &C::block_q>(
            "block_q", "bq",
            {kBlockQ, "block", Level::hardware, false,
             "query rows of a block: more share each tile of K and V, fewer leave registers"}),
        number<C, &C::block_k>("block_k", "bk",
                               {kBlockK, "block", Level::hardware, false,
                                "keys of a tile: one step of the online softmax"}),
        flag<C, &C::vector>("vector", "v", "vector", Level::implementation, false,
                            "loads of 16 bytes (1) or of one element (0)"),
    });

class Fused final : public LadderRung {
 public:
  constexpr Fused()
      : LadderRung({.name = "fused",
                    .mode = ATTUNE_FUSED,
                    .meaning = "online softmax: scores never leave the chip",
                    .type = "LadderConfig",
                    .fields = kTable.fields}) {}

  std::span<const Member<C>> members() const override { return kTable.members; }
  int rank(const Request&) const override { return 30; }
  // Where the numbers come from: docs/ladder.md.
  C typed_standard(const Request& r) const override {
    const Problem& p = r.problem;
    // Features that bring much code into each of a thread's scores, or registers; and a wide
    // output.
    const bool small = p.softcap || p.dropout || p.block_mask_q != 0 || p.score_mod || p.mask_mod ||
                       p.dim > 128 || p.dim_v > 128 || (p.seq_q <= 32 && !p.batch_invariant);
    constexpr struct { int q, k; } kTiles[] = {{64, 64}, {64, 32}, {32, 64}, {32, 32}, {32, 16}};
    C c{.rung = Ladder::fused, .vector = r.layout.rows16};
    for (const auto& tile : kTiles) {
      if (tile.q > 32 && small) continue;
      c.block_q = tile.q;
      c.block_k = tile.k;
      if (*invalid_reason(c, p, r.arch) == '\0') break;
    }
    return c;
  }
  std::vector<std::pair<const char*, int64_t>> grids(const Problem& p, const C& c) const override {
    return {{"attune_fused", p.batch * p.heads_q * ceil_div(p.seq_q, c.block_q)}};
  }
  Unit typed_unit(const Problem&, const C&) const override {
    return {{"ladder/fused.cuh"}, {{"attune_fused", "fused", kLadderBounds}}};
  }
};

constinit const Fused kFused;

}  // namespace

const Rung& fused_rung() { return kFused; }

}  // namespace attune
