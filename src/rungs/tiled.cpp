// Tiles in shared memory, three kernels, and all scores in the workspace.
#include "src/rungs/ladder.hpp"
#include "src/rungs/registry.hpp"

namespace attune {
namespace {

constexpr auto kTable = fixed_table_of(Ladder::tiled);

class Tiled final : public LadderRung {
 public:
  constexpr Tiled()
      : LadderRung({.name = "tiled",
                    .mode = ATTUNE_TILED,
                    .meaning = "tiles in shared memory; all scores go to memory",
                    .type = "LadderConfig",
                    .fields = kTable.fields}) {}

  std::span<const Member<LadderConfig>> members() const override { return kTable.members; }
  int rank(const Request&) const override { return 20; }
  LadderConfig typed_standard(const Request&) const override {
    return {.rung = Ladder::tiled, .vector = false};
  }
  std::vector<std::pair<const char*, int64_t>> grids(const Problem& p,
                                                     const LadderConfig& c) const override {
    const int64_t heads = p.batch * p.heads_q;
    const int64_t tiles_q = ceil_div(p.seq_q, c.block_q), tiles_k = ceil_div(p.seq_k, c.block_k);
    return {{"attune_scores", heads * tiles_q * tiles_k},
            {"attune_softmax", ceil_div(heads * p.seq_q, kSoftmaxRows)},
            {"attune_output", heads * tiles_q * ceil_div(p.dim_v, c.block_q)}};
  }
  // The scores, in float; SIZE_MAX stands for more than memory has addresses.
  size_t workspace(const Problem& p) const override {
    size_t bytes = sizeof(float);
    for (int64_t n : {p.batch, p.heads_q, p.seq_q, p.seq_k})
      if (__builtin_mul_overflow(bytes, size_t(n), &bytes)) return p.seq_k != 0 ? SIZE_MAX : 0;
    return bytes;
  }
  Unit typed_unit(const Problem&, const LadderConfig&) const override {
    return {{"ladder/tiled.cuh"},
            {{"attune_scores", "tiled_scores", kLadderBounds},
             {"attune_softmax", "tiled_softmax", kLadderBounds},
             {"attune_output", "tiled_output", kLadderBounds}}};
  }
};

constinit const Tiled kTiled;

}  // namespace

const Rung& tiled_rung() { return kTiled; }

}  // namespace attune
