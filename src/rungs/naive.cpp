// The definition, in fp32: a warp a row of scores.
#include "src/rungs/ladder.hpp"
#include "src/rungs/registry.hpp"

namespace attune {
namespace {

constexpr auto kTable = fixed_table_of(Ladder::naive);

class Naive final : public LadderRung {
 public:
  constexpr Naive()
      : LadderRung({.name = "naive",
                    .mode = ATTUNE_NAIVE,
                    .meaning = "a warp a row of scores",
                    .type = "LadderConfig",
                    .fields = kTable.fields}) {}

  std::span<const Member<LadderConfig>> members() const override { return kTable.members; }
  int rank(const Request&) const override { return 10; }
  LadderConfig typed_standard(const Request&) const override {
    return {.rung = Ladder::naive, .vector = false};
  }
  std::vector<std::pair<const char*, int64_t>> grids(const Problem& p,
                                                     const LadderConfig&) const override {
    return {{"attune_naive", ceil_div(p.batch * p.heads_q * p.seq_q, kNaiveRows)}};
  }
  Unit typed_unit(const Problem&, const LadderConfig&) const override {
    return {{"ladder/naive.cuh"}, {{"attune_naive", "naive", kLadderBounds}}};
  }
};

constinit const Naive kNaive;

}  // namespace

const Rung& naive_rung() { return kNaive; }

}  // namespace attune
