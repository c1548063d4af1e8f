// The inputs of timed calls: hard for who leaves out a row's maximum, and no less work than others.
#include "evolve/judge/timed_set.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace attune::evolve {
namespace {

TimedShape shape_of(DType dtype, int32_t dim) {
  TimedShape shape{"small", {}, 1};
  Problem& p = shape.problem;
  p.dtype = dtype;
  p.batch = 1;
  p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_k = 96;
  p.dim = p.dim_v = dim;
  return shape;
}

struct Rows {
  double largest_score = -INFINITY, smallest_maximum = INFINITY;
  double largest_weight = 0;  // of a row, on average
};

// Of all rows of a drawn call.
Rows rows_of(const Arena& arena, int64_t call) {
  ArenaCall c;
  std::memcpy(&c, arena.base() + call, sizeof(c));
  const Problem& p = c.problem;
  const auto number = [&](const View& view, int64_t h, int64_t i, int64_t d) {
    const int64_t at = h * view.stride_h + i * view.stride_s + d;
    const auto* base = arena.base() + (reinterpret_cast<int64_t>(view.data) - 1);
    return double(number_at(p.dtype, base + at * (p.dtype == DType::f32 ? 4 : 2)));
  };
  Rows rows;
  for (int64_t h = 0; h < p.heads_q; ++h)
    for (int64_t i = 0; i < p.seq_q; ++i) {
      std::vector<double> scores(size_t(p.seq_k), 0);
      for (int64_t j = 0; j < p.seq_k; ++j)
        for (int64_t d = 0; d < p.dim; ++d)
          scores[size_t(j)] +=
              number(c.params.q, h, i, d) * number(c.params.k, h, j, d) / std::sqrt(double(p.dim));
      const double top = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (const double s : scores) sum += std::exp(s - top);
      rows.largest_score = std::max(rows.largest_score, top);
      rows.smallest_maximum = std::min(rows.smallest_maximum, top);
      rows.largest_weight += 1 / sum / double(p.heads_q * p.seq_q);
    }
  return rows;
}

class TimedSets : public testing::TestWithParam<DType> {
 protected:
  // What `draws` single calls have.
  std::vector<Rows> drawn(Hard hard, int draws) {
    const TimedShape shape = shape_of(GetParam(), 32);
    const NormalPool pool(GetParam(), 1);
    std::unique_ptr<Arena> arena;
    EXPECT_TRUE(Arena::create(int64_t{8} << 20, int64_t{8} << 20, &arena).ok());
    TimedSet set(shape, pool, arena.get(), int64_t{4} << 20, 4, {});
    Dice dice(7, 0);
    std::vector<Rows> all;
    for (int n = 0; n < draws; ++n) all.push_back(rows_of(*arena, set.draw(1, hard, &dice)[0]));
    return all;
  }
};

// Counted samples: exponentials of float32 overflow in some of the rows and vanish in others, and
// the weights are those of N(0,1).
TEST_P(TimedSets, LargeScoresLeaveTheWeights) {
  int large = 0;
  for (const Rows& rows : drawn(Hard::even, 20)) {
    EXPECT_LT(rows.largest_weight, 0.2);
    if (rows.largest_score < 100) continue;
    EXPECT_LT(rows.smallest_maximum, -100);
    ++large;
  }
  EXPECT_GT(large, 3);
  EXPECT_LT(large, 17);
}

TEST_P(TimedSets, OneKeyOutweighsWhereNothingIsCounted) {
  int sparse = 0;
  for (const Rows& rows : drawn(Hard::one_key, 20)) sparse += rows.largest_weight > 0.3;
  EXPECT_GT(sparse, 3);
  EXPECT_LT(sparse, 17);
}

INSTANTIATE_TEST_SUITE_P(All, TimedSets, testing::Values(DType::f32, DType::f16, DType::bf16));

}  // namespace
}  // namespace attune::evolve
