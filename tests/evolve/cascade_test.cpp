// The order of the cascade: what is looked at when. The programs are the library's own, in workers;
// what the judge hears of them is written in the test.
#include "evolve/judge/cascade.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "tests/evolve/worker_skip.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

constexpr double kCall = 1e-3, kEmpty = 1e-7;  // seconds, as they are told

TimedShape shape_of(int64_t rows) {
  TimedShape shape{std::to_string(rows), {}, 1};
  Problem& p = shape.problem;
  p.dtype = DType::f32;
  p.batch = p.heads_q = p.heads_kv = 1;
  p.seq_q = p.seq_k = rows;
  p.dim = p.dim_v = 8;
  return shape;
}

// Timed data that say at a certain look that inputs were changed.
class Watched final : public TimedData {
 public:
  Watched(const TimedShape& shape, std::unique_ptr<TimedData> data, const int* bad_look, int* looks)
      : TimedData(shape), data_(std::move(data)), bad_look_(bad_look), looks_(looks) {}
  int count() const override { return data_->count(); }
  std::vector<int64_t> draw(int calls, Hard hard, Dice* dice) override {
    return data_->draw(calls, hard, dice);
  }
  std::vector<Range> outputs(const std::vector<int64_t>& calls) const override {
    return data_->outputs(calls);
  }
  Fault verify(const std::vector<int64_t>& calls, const Look& look, const check::Allowance& allow,
               const Access& access, Dice* dice) const override {
    return data_->verify(calls, look, allow, access, dice);
  }
  Fault verify_inputs(int, const Fetch&, Dice*) const override {
    return ++*looks_ == *bad_look_ ? Fault{true, "inputs were changed"} : Fault{};
  }

 private:
  std::unique_ptr<TimedData> data_;
  const int* bad_look_;
  int* looks_;
};

class Scripted final : public Cascade {
 public:
  explicit Scripted(const std::vector<int64_t>& rows) : Cascade(options(rows)) {
    constexpr int64_t kBytes = 16 << 20;
    health_ = Arena::create(4 * kBytes, 4 * kBytes, &arena_);
    for (const TimedShape& s : o_.shapes)
      sets_.push_back(std::make_unique<Watched>(
          s, std::make_unique<TimedSet>(s, pool_, arena_.get(), kBytes, 8, executor_),
          &changes_at_look, &looks));
    mark_ = arena_->mark();
  }

  int hides_at = -1, hidden_looks = 0;  // looks for hidden work, and the one that finds some
  int changes_at_look = -1, looks = 0;
  int same_time_from = 1 << 30;    // of hidden_looks: any number of calls takes as long as one
  double parent_seconds = 0;       // that a sample takes the parent, beside the run
  std::map<int64_t, double> warm;  // seconds of runs before the first look, by the rows of a shape

 private:
  static EvaluatorOptions options(const std::vector<int64_t>& rows) {
    EvaluatorOptions o;
    for (const int64_t n : rows) o.shapes.push_back(shape_of(n));
    o.tool = tool_path();
    o.seed = 1;
    o.batch_seconds = 2.5 * kCall;
    return o;
  }

  bool open(const Candidate& c, Lane* lane, Evaluation* e) override {
    lane->id = c.id;
    lane->config = c.config;
    WorkerOptions w;
    w.tool = o_.tool;
    const Status started = Worker::start(w, *arena_, &lane->worker);
    if (!started.ok()) return fail(e, Verdict::launch_failed, started.message);
    const Reply loaded = lane->worker->load_config(c.config, o_.check_seconds);
    return loaded.ok() || fail(e, loaded);
  }
  Reply run(Lane* lane, std::span<const int64_t> calls, double, const Done&) override {
    Reply reply = lane->worker->run(calls, o_.check_seconds);
    reply.seconds =
        calls.empty() ? kEmpty : kCall * (hidden_looks < same_time_from ? double(calls.size()) : 1);
    if (!std::exchange(timed_, false) || hidden_looks > 0) return reply;
    ArenaCall call;
    std::memcpy(&call, arena_->base() + calls[0], sizeof(call));
    warm[call.problem.seq_q] += reply.seconds;
    return reply;
  }
  Reply poison(Lane*, std::span<const Range>) override {  // before each sample, and nowhere else
    timed_ = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(parent_seconds));
    return {};
  }
  std::string hidden_work(Lane*, Evaluation*) override {
    return ++hidden_looks == hides_at ? "it works on" : "";
  }
  bool runs(const Lane&, const check::Case&) const override { return true; }
  check::Allowance allowance(const Lane&, const Problem&) const override { return {}; }
  Reply upload(Lane*, std::span<const Range>) override { return {}; }
  Reply fetch(Lane*, std::span<const Range>) override { return {}; }
  double most_flops(DType) const override { return 1e30; }
  double most_bytes() const override { return 1e30; }
  bool processor_time_tells() const override { return false; }
  bool lse_is_another_kernel() const override { return false; }
  bool admits(const Lane&) const override { return false; }

  NormalPool pool_{DType::f32, 1};
  bool timed_ = false;
};

class WorkerCascade : public testing::Test {
 protected:
  void SetUp() override { ATTUNE_NEEDS_SANDBOX(); }
  // One candidate in one sitting.
  static Evaluation compared(Scripted* judge) {
    return judge->compare({{"naive", "naive", ""}}, 3).verdicts[0];
  }
};

// In a comparison too, after the timed rounds: the looks before are those of warming up, and of the
// worker that is checked.
TEST_F(WorkerCascade, ComparisonsLookAfterTheirRounds) {
  Scripted honest({24});
  const Evaluation e = compared(&honest);
  EXPECT_TRUE(e.ok()) << e.why;
  EXPECT_EQ(honest.hidden_looks, 4);
  EXPECT_EQ(honest.looks, 1);

  Scripted hides({24});
  hides.hides_at = 4;
  EXPECT_EQ(compared(&hides).why, "it works on");

  Scripted changes({24});
  changes.changes_at_look = 1;
  EXPECT_EQ(compared(&changes).why, "inputs were changed");

  Scripted skips({24});
  skips.same_time_from = 3;  // once it is warm
  const Evaluation twice = compared(&skips);
  EXPECT_EQ(twice.verdict, Verdict::cheated);
  EXPECT_NE(twice.why.find("twice the calls"), std::string::npos) << twice.why;
}

// A worker is as warm as an older one before it is timed: each shape ran for 50 ms, however long
// the parent looked at what came of it.
TEST_F(WorkerCascade, EveryShapeWarmsUpByTheTimeOfItsRuns) {
  Scripted judge({24, 40});
  judge.parent_seconds = 0.01;
  const Evaluation e = compared(&judge);
  EXPECT_TRUE(e.ok()) << e.why;
  ASSERT_EQ(judge.warm.size(), 2u);
  for (const auto& [rows, seconds] : judge.warm) {
    EXPECT_GE(seconds, 0.05) << rows;
    EXPECT_LE(seconds, 0.1) << rows;
  }
}

}  // namespace
}  // namespace attune::evolve
