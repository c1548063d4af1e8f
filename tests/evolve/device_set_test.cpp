// What a GPU's timed calls read and how their results are checked, with the host as the device: its
// memory is the arena.
#include "evolve/judge/device_set.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace attune::evolve {
namespace {

// More elements than the cases of admission have.
TimedShape timed_shape() {
  TimedShape shape{"timed", {}, 1};
  Problem& p = shape.problem;
  p.dtype = DType::f16;
  p.batch = 3;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seq_q = p.seq_k = 96;
  p.dim = p.dim_v = 40;
  return shape;
}

class DeviceSets : public testing::Test {
 protected:
  void SetUp() override {
    constexpr int64_t kBytes = 4 << 20;
    const Problem& p = shape_.problem;
    ASSERT_TRUE(Arena::create(4 * kBytes, &arena_).ok());
    pool_ = std::make_unique<DevicePool>(p.dtype, kBytes, DevicePool::hard_bytes(p), arena_.get(),
                                         &dice_);
    const Range outputs{arena_->take(Arena::Part::written, kBytes), kBytes};
    set_ = std::make_unique<DeviceSet>(shape_, pool_.get(), arena_.get(), outputs, &dice_);
    ASSERT_TRUE(pool_->fits());
    ASSERT_TRUE(set_->fits());
  }

  ArenaCall record(int64_t call) const {
    ArenaCall c;
    std::memcpy(&c, arena_->base() + call, sizeof(c));
    return c;
  }
  std::byte* at(const View& view) const {
    return arena_->base() + (reinterpret_cast<int64_t>(view.data) - 1);
  }

  // The output of one call, in plain loops; `top` false: without the row's maximum.
  void compute(int64_t call, bool top) {
    const ArenaCall c = record(call);
    const Problem& p = c.problem;
    const auto row = [&](const View& v, int64_t b, int64_t h, int64_t i) {
      return at(v) + 2 * (b * v.stride_b + h * v.stride_h + i * v.stride_s);
    };
    std::vector<float> w(size_t(p.seq_k));
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < p.heads_q; ++h)
        for (int64_t i = 0; i < p.seq_q; ++i) {
          const int64_t kv = h / p.group();
          float largest = top ? -INFINITY : 0, sum = 0;
          for (int64_t j = 0; j < p.seq_k; ++j) {
            float s = 0;
            for (int64_t d = 0; d < p.dim; ++d)
              s += number_at(p.dtype, row(c.params.q, b, h, i) + 2 * d) *
                   number_at(p.dtype, row(c.params.k, b, kv, j) + 2 * d);
            w[size_t(j)] = s * c.params.scale;
            if (top) largest = std::max(largest, w[size_t(j)]);
          }
          for (float& x : w) sum += x = std::exp(x - largest);
          for (int64_t d = 0; d < p.dim_v; ++d) {
            float o = 0;
            for (int64_t j = 0; j < p.seq_k; ++j)
              o += w[size_t(j)] * number_at(p.dtype, row(c.params.v, b, kv, j) + 2 * d);
            put_number(p.dtype, row(c.params.out, b, h, i) + 2 * d, o / sum);
          }
        }
  }

  // A row that has no number, as the keeper finds the one that differs most.
  int64_t worst(const std::vector<std::byte>& device, int64_t call) const {
    const ArenaCall c = record(call);
    const Problem& p = c.problem;
    const int64_t elements = p.batch * p.heads_q * p.seq_q * p.dim_v;
    const std::byte* out = &device[size_t(at(c.params.out) - arena_->base())];
    for (int64_t n = 0; n < elements; ++n)
      if (!std::isfinite(number_at(p.dtype, out + 2 * n))) return n / p.dim_v;
    return 0;
  }

  // How many of `samples` single calls are found wrong. The device has what is in the arena; what
  // verify() writes there to see what was not fetched is put back.
  int wrong(Hard hard, bool top, int samples) {
    int found = 0;
    for (int n = 0; n < samples; ++n) {
      const std::vector<int64_t> calls = set_->draw(1, hard, &dice_);
      for (const Range& r : set_->outputs(calls))
        std::memset(arena_->base() + r.at, int(kPoison), size_t(r.bytes));
      compute(calls[0], top);
      const std::vector<std::byte> device(arena_->base(), arena_->base() + arena_->size());
      const Access access{[&](std::span<const Range> ranges) {
                            for (const Range& r : ranges)
                              std::memcpy(arena_->base() + r.at, &device[size_t(r.at)],
                                          size_t(r.bytes));
                            return true;
                          },
                          [&](std::span<const int64_t> drawn, std::vector<int64_t>* rows) {
                            for (const int64_t call : drawn) rows->push_back(worst(device, call));
                            return true;
                          }};
      const Fault fault = set_->verify(calls, {4, true}, {}, access, &dice_);
      EXPECT_FALSE(fault.cheated) << fault.why;
      if (top) {
        EXPECT_EQ(fault.why, "");
      }
      found += !fault.why.empty();
    }
    return found;
  }

  const TimedShape shape_ = timed_shape();
  Dice dice_{11, 0};
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<DeviceSet> set_;
};

TEST_F(DeviceSets, RightResultsPass) {
  for (const Hard hard : {Hard::even, Hard::one_key}) EXPECT_EQ(wrong(hard, true, 6), 0);
}

// At the full timed shape: exponentials overflow in every other sample.
TEST_F(DeviceSets, ARowsMaximumIsNeeded) {
  for (const Hard hard : {Hard::even, Hard::one_key}) {
    const int found = wrong(hard, false, 12);
    EXPECT_GT(found, 1);
    EXPECT_LT(found, 12);
  }
}

TEST_F(DeviceSets, HardKeysAreApartFromWhatIsDrawn) {
  const Problem& p = shape_.problem;
  const int64_t bytes = p.batch * p.heads_kv * p.seq_k * p.dim * 2;
  const Range all = pool_->range();
  const int64_t plain = all.at + all.bytes - DevicePool::hard_bytes(p);
  for (int n = 0; n < 200; ++n) EXPECT_LE(pool_->draw(bytes, &dice_) + bytes, plain);
  EXPECT_LT(pool_->hard_keys(Hard::even, bytes, 1, &dice_), 0);  // no room for more
  // They are what is sent: the arena's copy and the parent's are the same.
  EXPECT_EQ(std::memcmp(arena_->base() + all.at, pool_->own(all.at), size_t(all.bytes)), 0);
}

}  // namespace
}  // namespace attune::evolve
