// What is looked at after a timed call: its output, its LSE, and what lies around them.
#include <gtest/gtest.h>

#include <cstring>

#include "evolve/judge/device_set.hpp"
#include "evolve/judge/timed_set.hpp"
#include "src/cpu/reference.hpp"

namespace attune::evolve {
namespace {

constexpr int64_t kBytes = 8 << 20;

TimedShape shape_of(bool lse) {
  TimedShape shape{"shape", {}, 1};
  Problem& p = shape.problem;
  p.dtype = DType::f16;
  p.batch = 1, p.heads_q = 2, p.heads_kv = 1;
  p.seq_q = p.seq_k = 21;
  p.dim = p.dim_v = 9;  // the output ends within 64 bytes
  p.lse = lse;
  return shape;
}

ArenaCall call_at(const Arena& arena, int64_t at) {
  ArenaCall call;
  std::memcpy(&call, arena.base() + at, sizeof(call));
  for (View* view :
       {&call.params.q, &call.params.k, &call.params.v, &call.params.out, &call.params.lse})
    if (view->data != nullptr)
      view->data = arena.base() + (reinterpret_cast<std::byte*>(view->data) -
                                   reinterpret_cast<std::byte*>(as_offset<void>(0)));
  return call;
}

void compute(const ArenaCall& call) { cpu::naive_forward(call.problem, call.params, {}); }

struct Timed {
  explicit Timed(bool lse) : pool(DType::f16, 3) {
    EXPECT_TRUE(Arena::create(kBytes, kBytes, &arena).ok());
    set = std::make_unique<TimedSet>(shape_of(lse), pool, arena.get(), kBytes / 2, 3, executor);
    EXPECT_FALSE(set->none());
  }

  // What is found once one call was computed and `change` was done to it.
  template <class Change>
  Fault verdict(const Change& change) {
    const std::vector<int64_t> calls = set->draw(1, Hard::even, &dice);
    const ArenaCall call = call_at(*arena, calls[0]);
    compute(call);
    change(call.params);
    return set->verify(calls, {4, true}, {}, {}, &dice);
  }

  NormalPool pool;
  cpu::Executor executor;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<TimedSet> set;
  Dice dice{7, 0};
};

TEST(TimedLse, LseBelongsToACallThatAsksForIt) {
  Timed without(false), with(true);
  for (int n = 0; n < 4; ++n) {
    without.verdict([](const Params& a) { EXPECT_EQ(a.lse.data, nullptr); });
    const Fault fault = with.verdict([](const Params& a) { EXPECT_NE(a.lse.data, nullptr); });
    EXPECT_EQ(fault.why, "");
  }
}

TEST(TimedLse, LseIsComparedWithFloat64) {
  Timed timed(true);
  const Fault off = timed.verdict([](const Params& a) {
    for (int row = 0; row < 42; ++row) static_cast<float*>(a.lse.data)[row] += 0.5f;
  });
  EXPECT_FALSE(off.cheated);
  EXPECT_NE(off.why.find("lse["), std::string::npos) << off.why;
}

TEST(TimedLse, LseMustBeWritten) {
  Timed timed(true);
  const Fault none =
      timed.verdict([](const Params& a) { std::memset(a.lse.data, int(kPoison), 42 * 4); });
  EXPECT_FALSE(none.cheated);
  EXPECT_NE(none.why.find("LSE of row"), std::string::npos) << none.why;
}

TEST(TimedLse, NothingAroundLseIsWritten) {
  Timed timed(true);
  for (const int at : {-1, 42}) {
    const Fault beside = timed.verdict([&](const Params& a) {
      float one = 1;
      std::memcpy(static_cast<std::byte*>(a.lse.data) + 4 * at, &one, sizeof(one));
    });
    EXPECT_TRUE(beside.cheated) << at;
  }
}

// On a device, whose memory is played here by a copy of the arena.
struct OnDevice {
  OnDevice() {
    EXPECT_TRUE(Arena::create(0, 4 * kBytes, &arena).ok());
    pool = std::make_unique<DevicePool>(
        DType::f16, kBytes, DevicePool::hard_bytes(shape_of(true).problem), arena.get(), &dice);
    const Range region{arena->take(Arena::Part::written, kBytes), kBytes};
    set = std::make_unique<DeviceSet>(shape_of(true), pool.get(), arena.get(), region, &dice);
    EXPECT_TRUE(set->fits());
  }

  template <class Change>
  Fault verdict(const Change& change) {
    const std::vector<int64_t> calls = set->draw(1, Hard::even, &dice);
    for (const Range& r : set->outputs(calls))
      std::memset(arena->base() + r.at, int(kPoison), size_t(r.bytes));
    const ArenaCall call = call_at(*arena, calls[0]);
    compute(call);
    change(call.params);
    const std::vector<std::byte> memory(arena->base(), arena->base() + arena->size());
    Access access;
    access.fetch = [&](std::span<const Range> ranges) {
      for (const Range& r : ranges)
        std::memcpy(arena->base() + r.at, memory.data() + r.at, size_t(r.bytes));
      return true;
    };
    access.worst_rows = [](std::span<const int64_t> asked, std::vector<int64_t>* rows) {
      rows->assign(asked.size(), 41);
      return true;
    };
    return set->verify(calls, {4, true}, {}, access, &dice);
  }

  Dice dice{5, 0};
  std::unique_ptr<Arena> arena;
  std::unique_ptr<DevicePool> pool;
  std::unique_ptr<DeviceSet> set;
};

TEST(TimedLse, OnADeviceLseIsLookedAtToo) {
  OnDevice device;
  for (int n = 0; n < 4; ++n) EXPECT_EQ(device.verdict([](const Params&) {}).why, "");
  const Fault off = device.verdict([](const Params& a) {
    for (int row = 0; row < 42; ++row) static_cast<float*>(a.lse.data)[row] += 0.5f;
  });
  EXPECT_NE(off.why.find("lse["), std::string::npos) << off.why;
  const Fault last = device.verdict([](const Params& a) {  // the row that differs most
    static_cast<float*>(a.lse.data)[41] += 0.5f;
  });
  EXPECT_NE(last.why.find("lse[0,1,20]"), std::string::npos) << last.why;
  for (const int at : {-1, 42}) {
    const Fault beside = device.verdict([&](const Params& a) {
      float one = 1;
      std::memcpy(static_cast<std::byte*>(a.lse.data) + 4 * at, &one, sizeof(one));
    });
    EXPECT_TRUE(beside.cheated) << at;
  }
}

}  // namespace
}  // namespace attune::evolve
