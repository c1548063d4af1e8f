// What is looked at after a timed call of the backward pass: its gradients, and what lies around.
#include <gtest/gtest.h>

#include <cstring>

#include "evolve/judge/timed_set.hpp"
#include "evolve/worker/program_call.hpp"
#include "src/cpu/reference.hpp"

namespace attune::evolve {
namespace {

constexpr int64_t kBytes = 8 << 20;

TimedShape shape_of(DType dtype) {
  TimedShape shape{"shape", {}, 1};
  Problem& p = shape.problem;
  p.pass = Pass::backward;
  p.dtype = dtype;
  p.batch = 1, p.heads_q = 4, p.heads_kv = 2;
  p.seq_q = p.seq_k = 61;
  p.dim = 9, p.dim_v = 7;  // no gradient ends at a multiple of 64 bytes
  p.causal = true;
  return shape;
}

struct Timed {
  explicit Timed(DType dtype) : pool(dtype, 3) {
    EXPECT_TRUE(Arena::create(kBytes, kBytes, &arena).ok());
    set = std::make_unique<TimedSet>(shape_of(dtype), pool, arena.get(), kBytes / 2, 3, executor);
    EXPECT_FALSE(set->none());
  }

  // What is found once one call was computed and `change` was done to it.
  template <class Change>
  Fault verdict(const Change& change, int rows = 2) {
    const std::vector<int64_t> calls = set->draw(1, Hard::even, &dice);
    const Memory memory{arena->base(), arena->size()};
    ArenaCall call;
    EXPECT_TRUE(memory.get(calls[0], arena->base(), &call));
    EXPECT_EQ(call.problem.pass, Pass::backward);
    EXPECT_TRUE(call.problem.lse);
    cpu::reference_backward(call.problem, call.params, call.grads, executor);
    change(call);
    return set->verify(calls, {rows, true}, {}, {}, &dice);
  }

  NormalPool pool;
  cpu::Executor executor;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<TimedSet> set;
  Dice dice{7, 0};
};

constexpr auto kNothing = [](const ArenaCall&) {};

TEST(TimedBackward, WhatIsRightPasses) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Timed timed(dtype);
    for (int n = 0; n < 6; ++n) EXPECT_EQ(timed.verdict(kNothing, n % 2 == 0 ? 2 : 8).why, "");
  }
}

TEST(TimedBackward, OutAndLseAreThoseOfTheForwardPass) {
  Timed timed(DType::f32);
  timed.verdict([&](const ArenaCall& call) {
    Problem p = call.problem;
    p.pass = Pass::forward;
    Params a = call.params;
    const int64_t rows = p.batch * p.heads_q * p.seq_q;
    std::vector<float> out(size_t(rows * p.dim_v)), lse(static_cast<size_t>(rows));
    a.out.data = out.data();
    a.lse.data = lse.data();
    cpu::naive_forward(p, a, {});
    const auto* its = static_cast<const float*>(call.params.out.data);
    for (size_t n = 0; n < out.size(); ++n) EXPECT_NEAR(out[n], its[n], 1e-3) << n;
    for (size_t n = 0; n < lse.size(); ++n)
      EXPECT_NEAR(lse[n], static_cast<const float*>(call.params.lse.data)[n], 1e-2) << n;
  });
}

// One element of one gradient, wherever it is, by a thousandth of the largest.
TEST(TimedBackward, OneWrongElementIsFound) {
  Timed timed(DType::f32);
  const Problem p = shape_of(DType::f32).problem;
  const int64_t keys = p.heads_kv * p.seq_k;
  for (int which = 0; which < 3; ++which)
    for (const bool last : {false, true}) {
      const Fault fault = timed.verdict([&](const ArenaCall& call) {
        const View& view = which == 0 ? call.grads.dq : which == 1 ? call.grads.dk : call.grads.dv;
        const int64_t count = which == 0   ? p.heads_q * p.seq_q * p.dim
                              : which == 1 ? keys * p.dim
                                           : keys * p.dim_v;
        auto* at = static_cast<float*>(view.data);
        float largest = 0;
        for (int64_t n = 0; n < count; ++n) largest = std::max(largest, std::abs(at[n]));
        at[last ? count - 1 : count / 2] += 0.01f * largest;
      });
      EXPECT_FALSE(fault.cheated) << fault.why;
      const char* names[] = {"dq[", "dk[", "dv["};
      EXPECT_NE(fault.why.find(names[which]), std::string::npos) << which << ": " << fault.why;
    }
}

TEST(TimedBackward, EveryGradientMustBeWritten) {
  Timed timed(DType::f16);
  const WrittenGradients sizes(shape_of(DType::f16).problem);
  for (const auto& [at, bytes, name] : {std::tuple{int64_t{0}, sizes.dq, "dq"},
                                        {sizes.dk_at, sizes.dk, "dk"},
                                        {sizes.dv_at, sizes.dv, "dv"}}) {
    const Fault none = timed.verdict([&, at = at, bytes = bytes](const ArenaCall& call) {
      std::memset(static_cast<std::byte*>(call.grads.dq.data) + at, int(kPoison), size_t(bytes));
    });
    EXPECT_FALSE(none.cheated);
    EXPECT_NE(none.why.find(name), std::string::npos) << none.why;
  }
}

TEST(TimedBackward, NothingAroundAGradientIsWritten) {
  Timed timed(DType::f16);
  const WrittenGradients sizes(shape_of(DType::f16).problem);
  for (const int64_t at : {int64_t{-1}, sizes.dq, sizes.dk_at - 1, sizes.dk_at + sizes.dk,
                           sizes.dv_at - 1, sizes.bytes}) {
    const Fault beside = timed.verdict([&](const ArenaCall& call) {
      static_cast<std::byte*>(call.grads.dq.data)[at] = std::byte{1};
    });
    EXPECT_TRUE(beside.cheated) << at;
    EXPECT_EQ(beside.why, "memory around a timed call's output was written to");
  }
}

TEST(TimedBackward, AChangeAfterTheReplyIsSeen) {
  Timed timed(DType::f32);
  const std::vector<int64_t> calls = timed.set->draw(1, Hard::even, &timed.dice);
  for (int n = 0; n < 8; ++n) timed.set->glance(0, &timed.dice);  // nothing is there yet
  const Memory memory{timed.arena->base(), timed.arena->size()};
  ArenaCall call;
  ASSERT_TRUE(memory.get(calls[0], timed.arena->base(), &call));
  cpu::reference_backward(call.problem, call.params, call.grads, timed.executor);
  const Fault late = timed.set->verify(calls, {2, true}, {}, {}, &timed.dice);
  EXPECT_TRUE(late.cheated);
  EXPECT_EQ(late.why, "the output of a timed call changed after its reply");
}

TEST(TimedBackward, OperationsAreThoseOfFiveProducts) {
  Problem p = shape_of(DType::f32).problem;
  p.dim_v = p.dim;
  Problem forward = p;
  forward.pass = Pass::forward;
  EXPECT_DOUBLE_EQ(flops_of(p), 2.5 * flops_of(forward));
}

}  // namespace
}  // namespace attune::evolve
