// Plans by the C ABI: a call that is checked once, and run many times.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "src/json.hpp"
#include "tests/api/sample.hpp"

namespace attune {
namespace {

using testing::kUntouched;
using testing::Memory;
using testing::Sample;

std::string refusal(attune_status status) {
  return status == ATTUNE_OK ? "accepted" : attune_last_error();
}

TEST(Plan, RunsAsForward) {
  for (const attune_mode mode : {ATTUNE_AUTO, ATTUNE_NAIVE, ATTUNE_REFERENCE}) {
    Sample once, planned;
    for (Sample* s : {&once, &planned}) {
      s->a.mode = mode;
      s->add_mask();
      s->add_sinks();
    }
    forward(once.a);
    const PlanHandle plan(planned.a);
    EXPECT_EQ(plan.workspace_size(), 0u);
    plan.prepare();
    EXPECT_FALSE(planned.written());
    plan.run();
    EXPECT_EQ(planned.m.out, once.m.out) << mode;
    EXPECT_EQ(planned.m.lse, once.m.lse) << mode;
  }
}

TEST(Plan, RunsOnOtherMemory) {
  Sample first, other;
  other.m.q = testing::numbers(Memory::kFloats, 77);
  other.a.q.data = other.m.q.data();
  const PlanHandle plan(first.a);
  plan.run(other.a);
  EXPECT_FALSE(first.written());
  Sample expected;
  expected.m.q = other.m.q;
  expected.a.q.data = expected.m.q.data();
  forward(expected.a);
  EXPECT_EQ(other.m.out, expected.m.out);
  other.a.scale = 0.5f;  // scalars are free
  expected.a.scale = 0.5f;
  plan.run(other.a);
  forward(expected.a);
  EXPECT_EQ(other.m.out, expected.m.out);
}

// One that is made of shapes runs on whatever memory comes later, and not without any.
TEST(Plan, OfShapesNeedsMemoryAtTheRun) {
  Sample s;
  attune_args shapes = s.a;
  for (attune_tensor* t : {&shapes.q, &shapes.k, &shapes.v, &shapes.out, &shapes.lse})
    t->data = nullptr;
  attune_plan* plan = nullptr;
  ASSERT_EQ(attune_plan_create(&shapes, SIZE_MAX, &plan), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(attune_plan_run(plan, nullptr, nullptr, 0), ATTUNE_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(attune_last_error(), "args is NULL"), nullptr) << attune_last_error();
  EXPECT_EQ(attune_plan_run(plan, &shapes, nullptr, 0), ATTUNE_INVALID_ARGUMENT);
  EXPECT_FALSE(s.written());
  EXPECT_EQ(attune_plan_run(plan, &s.a, nullptr, 0), ATTUNE_OK) << attune_last_error();
  EXPECT_TRUE(s.written());
  attune_plan_destroy(plan);
}

struct Change {
  const char* named;  // in the refusal
  void (*make)(Sample&);
};
const Change kChanges[] = {
    {"causal", [](Sample& s) { s.a.causal = 1, s.a.alignment = ATTUNE_ALIGN_TOP_LEFT; }},
    {"seq_q",
     [](Sample& s) {
       for (attune_tensor* t : {&s.a.q, &s.a.out, &s.a.lse}) t->shape[2] = 4;
     }},
    {"seq_k", [](Sample& s) { s.a.k.shape[2] = s.a.v.shape[2] = 3; }},
    {"dim_v", [](Sample& s) { s.a.v.shape[3] = s.a.out.shape[3] = 5; }},
    {"lse", [](Sample& s) { s.a.lse = {}; }},
    {"mask", [](Sample& s) { s.add_mask(); }},
    {"sinks", [](Sample& s) { s.add_sinks(); }},
    {"softcap", [](Sample& s) { s.a.softcap = 3; }},
    {"window_left", [](Sample& s) { s.a.window_left = 2, s.a.alignment = ATTUNE_ALIGN_TOP_LEFT; }},
    {"mode", [](Sample& s) { s.a.mode = ATTUNE_NAIVE; }},
    {"threads", [](Sample& s) { s.a.threads = 2; }},
    {"ragged", [](Sample& s) { s.make_ragged(); }},
};

TEST(Plan, OtherCallsAreRefusedByName) {
  Sample s;
  const PlanHandle plan(s.a);
  for (const Change& change : kChanges) {
    Sample other;
    change.make(other);
    attune_plan* raw = nullptr;
    ASSERT_EQ(attune_plan_create(&s.a, SIZE_MAX, &raw), ATTUNE_OK);
    const std::string why = refusal(attune_plan_run(raw, &other.a, nullptr, 0));
    attune_plan_destroy(raw);
    EXPECT_NE(why.find("args: "), std::string::npos) << change.named << ": " << why;
    EXPECT_FALSE(other.written()) << change.named;
  }
  EXPECT_FALSE(s.written());
}

// A cache grows: lengths are values, not shapes.
TEST(Plan, RunsWithOtherLengths) {
  for (const bool ragged : {false, true}) {
    std::vector<int32_t> lengths = {5, 5};
    Sample planned;
    if (ragged) planned.make_ragged();
    planned.a.causal = 1;
    planned.a.alignment = ATTUNE_ALIGN_BOTTOM_RIGHT;
    planned.a.window_left = 6;
    if (!ragged) planned.a.key_lengths = tensor(lengths.data(), {2});
    const PlanHandle plan(planned.a);
    for (const auto& now : {std::vector<int32_t>{7, 7}, {1, 6}, {0, 3}, {5, 5}}) {
      lengths = now;
      if (ragged) planned.m.cu_k[1] = now[0];
      Sample expected;
      if (ragged) {
        expected.make_ragged();
        expected.m.cu_k[1] = now[0];
      } else {
        expected.a.key_lengths = planned.a.key_lengths;
      }
      expected.a.causal = planned.a.causal;
      expected.a.alignment = planned.a.alignment;
      expected.a.window_left = planned.a.window_left;
      forward(expected.a);
      plan.run(planned.a);
      EXPECT_EQ(planned.m.out, expected.m.out) << ragged << " " << now[0] << " " << now[1];
      EXPECT_EQ(planned.m.lse, expected.m.lse) << ragged << " " << now[0] << " " << now[1];
    }
  }
}

TEST(Plan, OfShapesTakesAnyLengths) {
  Sample s;
  s.make_ragged();
  attune_args shapes = s.a;
  for (attune_tensor* t : {&shapes.q, &shapes.k, &shapes.v, &shapes.out, &shapes.lse,
                           &shapes.cu_seqlens_q, &shapes.cu_seqlens_k})
    t->data = nullptr;
  const PlanHandle plan(shapes);
  plan.run(s.a);
  Sample expected;
  expected.make_ragged();
  forward(expected.a);
  EXPECT_EQ(s.m.out, expected.m.out);
}

TEST(Plan, OtherMemoryIsCheckedAsInForward) {
  Sample s;
  const PlanHandle plan(s.a);
  s.a.out.data = s.a.q.data;
  EXPECT_THROW(plan.run(s.a), Error);
  s.a.out.data = nullptr;
  EXPECT_THROW(plan.run(s.a), Error);
  EXPECT_THROW(plan.run(&s, 4096), Error) << "the CPU has no use for a workspace";
}

TEST(Plan, NullsAreRefused) {
  Sample s;
  attune_plan* plan = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(attune_plan_create(&s.a, SIZE_MAX, nullptr), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_plan_create(nullptr, SIZE_MAX, &plan), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_plan_workspace_size(nullptr, &bytes), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_plan_prepare(nullptr), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_plan_run(nullptr, &s.a, nullptr, 0), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_plan_explain(nullptr, nullptr, 0, &bytes), ATTUNE_INVALID_ARGUMENT);
  attune_plan_destroy(nullptr);
  s.a.q.rank = 2;
  plan = reinterpret_cast<attune_plan*>(&s);
  EXPECT_EQ(attune_plan_create(&s.a, SIZE_MAX, &plan), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
}

TEST(Plan, ExplainsItself) {
  Sample s;
  EXPECT_EQ(PlanHandle(s.a).explain(), explain(s.a));
  s.a.mode = ATTUNE_REFERENCE;
  EXPECT_EQ(PlanHandle(s.a).explain(), explain(s.a));
}

TEST(Plan, OfABackwardPass) {
  Sample once, planned;
  ASSERT_EQ(attune_backward(&once.b), ATTUNE_OK) << attune_last_error();
  const PlanHandle plan(planned.b);
  EXPECT_FALSE(planned.written());
  plan.run();
  EXPECT_EQ(planned.m.dq, once.m.dq);
  EXPECT_EQ(planned.m.dk, once.m.dk);
  EXPECT_EQ(planned.m.dv, once.m.dv);
  EXPECT_THROW(plan.run(planned.a), Error);
  const std::string text = plan.explain();
  EXPECT_EQ(text.find("attn_fwd"), std::string::npos) << text;
  EXPECT_NE(text.find("attn_bwd"), std::string::npos) << text;
  EXPECT_NE(text.find("\"backward\""), std::string::npos) << text;
  planned.a.mode = ATTUNE_NAIVE;
  EXPECT_THROW(PlanHandle{planned.b}, Error) << "no such backward pass";
}

TEST(Plan, OfNothingDoesNothing) {
  Sample s;
  for (attune_tensor* t : {&s.a.q, &s.a.out, &s.a.lse}) t->shape[2] = 0;
  const PlanHandle plan(s.a);
  plan.prepare();
  plan.run();
  EXPECT_FALSE(s.written());
}

TEST(Plan, IsRunByManyThreadsAtOnce) {
  Sample expected;
  forward(expected.a);
  Sample shapes;
  const PlanHandle plan(shapes.a);
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n)
    threads.emplace_back([&] {
      Sample own;
      for (int i = 0; i < 20; ++i) plan.run(own.a);
      EXPECT_EQ(own.m.out, expected.m.out);
    });
  for (std::thread& t : threads) t.join();
}

TEST(Plan, IsMoved) {
  Sample s;
  PlanHandle first(s.a);
  PlanHandle second(std::move(first));
  second.run();
  EXPECT_TRUE(s.written());
  Sample other;
  PlanHandle third(other.a);
  third = std::move(second);
  third.run();
  EXPECT_FALSE(other.written());
}

}  // namespace
}  // namespace attune
