#include <attune/attune.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/sample.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace attune {
namespace {

using nlohmann::json;
using testing::Sample;

bool mentions(const char* message, const char* part) {
  return std::strstr(message, part) != nullptr;
}

// A struct as a caller of another version would pass it: `size` bytes in memory of exactly that
// size.
template <class A>
class Resized {
 public:
  Resized(const A& args, size_t size) : bytes_(new char[size]()) {
    std::memcpy(bytes_.get(), &args, std::min(size, sizeof(A)));
    std::memcpy(bytes_.get(), &size, sizeof(size));
  }
  A* get() { return reinterpret_cast<A*>(bytes_.get()); }
  char& byte(size_t index) { return bytes_[index]; }

 private:
  std::unique_ptr<char[]> bytes_;
};

TEST(CApi, Versions) {
  const std::string version = std::to_string(ATTUNE_VERSION_MAJOR) + "." +
                              std::to_string(ATTUNE_VERSION_MINOR) + "." +
                              std::to_string(ATTUNE_VERSION_PATCH);
  EXPECT_EQ(attune_version(), version);
  EXPECT_EQ(attune_abi_version(), ATTUNE_ABI_VERSION);
}

TEST(CApi, EveryStatusHasItsName) {
  std::set<std::string> names;
  for (int code = ATTUNE_OK; code <= ATTUNE_CUDA_ERROR; ++code)
    names.insert(attune_status_name(attune_status(code)));
  EXPECT_EQ(names.size(), 6u);
  EXPECT_FALSE(names.contains(attune_status_name(attune_status(7))));
}

TEST(CApi, NullStructsAreRefused) {
  EXPECT_EQ(attune_forward(nullptr), ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(mentions(attune_last_error(), "args is NULL"));
  EXPECT_EQ(attune_backward(nullptr), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_explain(nullptr, nullptr, 0, nullptr), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_args_init(nullptr, sizeof(attune_args)), ATTUNE_INVALID_ARGUMENT);
  EXPECT_EQ(attune_backward_args_init(nullptr, sizeof(attune_backward_args)),
            ATTUNE_INVALID_ARGUMENT);
}

TEST(CApi, OlderCallersGetDefaults) {
  Sample full, old;
  full.a.lse = {};
  ASSERT_EQ(attune_forward(&full.a), ATTUNE_OK) << attune_last_error();
  old.a.causal = 1;  // beyond the old struct's end: never read
  Resized<attune_args> args(old.a, offsetof(attune_args, lse));
  args.get()->mode = ATTUNE_AUTO;
  ASSERT_EQ(attune_forward(args.get()), ATTUNE_OK) << attune_last_error();
  EXPECT_EQ(old.m.out, full.m.out);
  EXPECT_EQ(old.m.lse[0], testing::kUntouched);

  Resized<attune_backward_args> backward(old.b, offsetof(attune_backward_args, dv));
  backward.get()->forward = args.get();
  ASSERT_EQ(attune_backward(backward.get()), ATTUNE_OK) << attune_last_error();
  EXPECT_NE(old.m.dk[0], testing::kUntouched);
  EXPECT_EQ(old.m.dv[0], testing::kUntouched);
}

TEST(CApi, NewerCallersAreServedWhileTheyAskNothingNew) {
  Sample s;
  Resized<attune_args> args(s.a, sizeof(attune_args) + 40);
  EXPECT_EQ(attune_forward(args.get()), ATTUNE_OK) << attune_last_error();
  EXPECT_TRUE(s.written());

  Sample untouched;
  Resized<attune_args> more(untouched.a, sizeof(attune_args) + 40);
  more.byte(sizeof(attune_args) + 39) = 1;
  EXPECT_EQ(attune_forward(more.get()), ATTUNE_UNSUPPORTED);
  EXPECT_TRUE(mentions(attune_last_error(), "args.struct_size")) << attune_last_error();
  EXPECT_TRUE(mentions(attune_last_error(), std::to_string(sizeof(attune_args) + 39).c_str()))
      << attune_last_error();
  EXPECT_FALSE(untouched.written());
}

TEST(CApi, NonsenseSizesAreRefused) {
  for (size_t size :
       {size_t{0}, sizeof(size_t), offsetof(attune_args, lse) - 1, size_t{1} << 40, ~size_t{0}}) {
    Sample s;
    s.a.struct_size = size;
    EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT);
    EXPECT_TRUE(
        mentions(attune_last_error(), ("args.struct_size is " + std::to_string(size)).c_str()))
        << attune_last_error();
    EXPECT_EQ(attune_args_init(&s.a, size), ATTUNE_INVALID_ARGUMENT);
    EXPECT_TRUE(mentions(attune_last_error(), std::to_string(size).c_str())) << attune_last_error();
    EXPECT_EQ(s.a.struct_size, size);
    EXPECT_FALSE(s.written());
  }
}

TEST(CApi, InitFillsWhatTheCallerKnows) {
  const size_t longer = sizeof(attune_args) + 24;
  std::vector<char> bytes(longer + 1, 'x');
  auto* args = reinterpret_cast<attune_args*>(bytes.data());
  ASSERT_EQ(attune_args_init(args, longer), ATTUNE_OK);
  EXPECT_EQ(args->struct_size, longer);
  EXPECT_EQ(args->window_right, -1);
  EXPECT_EQ(args->parallel_user, nullptr);
  for (size_t i = sizeof(attune_args); i < longer; ++i) EXPECT_EQ(bytes[i], 0);
  EXPECT_EQ(bytes[longer], 'x');

  const size_t shorter = offsetof(attune_args, window_right);
  std::fill(bytes.begin(), bytes.end(), 'x');
  ASSERT_EQ(attune_args_init(args, shorter), ATTUNE_OK);
  EXPECT_EQ(args->struct_size, shorter);
  EXPECT_EQ(args->window_left, -1);
  EXPECT_EQ(bytes[shorter], 'x');
}

TEST(CApi, ExplainFollowsTheBufferProtocol) {
  Sample s;
  size_t needed = 0;
  ASSERT_EQ(attune_explain(&s.a, nullptr, 0, &needed), ATTUNE_OK) << attune_last_error();
  ASSERT_GT(needed, 2u);
  std::string whole(needed, 'x');
  ASSERT_EQ(attune_explain(&s.a, whole.data(), whole.size(), nullptr), ATTUNE_OK);
  EXPECT_EQ(whole.back(), '\0');
  EXPECT_EQ(std::strlen(whole.c_str()) + 1, needed);

  std::string part(12, 'x');
  size_t again = 0;
  ASSERT_EQ(attune_explain(&s.a, part.data(), 10, &again), ATTUNE_OK);
  EXPECT_EQ(again, needed);
  EXPECT_EQ(part, whole.substr(0, 9) + std::string(1, '\0') + "xx");

  EXPECT_EQ(attune_explain(&s.a, nullptr, 10, &again), ATTUNE_INVALID_ARGUMENT);
  EXPECT_TRUE(mentions(attune_last_error(), "text is NULL"));
  EXPECT_TRUE(mentions(attune_last_error(), "capacity is 10"));
  EXPECT_FALSE(s.written());
}

TEST(CApi, ExplainNamesTheChosenAndTheOthers) {
  Sample s;
  s.a.threads = 2;
  const struct {
    attune_mode mode;
    const char* name;
  } modes[] = {{ATTUNE_REFERENCE, "reference"}, {ATTUNE_NAIVE, "naive"}, {ATTUNE_FUSED, "fused"}};
  for (const auto& [mode, name] : modes) {
    s.a.mode = mode;
    const json text = json::parse(explain(s.a));
    EXPECT_EQ(text["mode"], name);
    EXPECT_EQ(text["threads"], 2);
    EXPECT_EQ(text["config"] != "", mode == ATTUNE_FUSED);
    EXPECT_EQ(text["backward"]["chosen"], mode == ATTUNE_NAIVE ? "" : name);
    int chosen = 0;
    std::set<std::string> named;
    for (const json& candidate : text["candidates"]) {
      named.insert(candidate["mode"]);
      if (candidate["chosen"]) {
        ++chosen;
        EXPECT_EQ(candidate["id"], text["chosen"]);
      } else {
        EXPECT_NE(candidate["reason"], "");
      }
    }
    EXPECT_EQ(chosen, 1);
    EXPECT_EQ(named, (std::set<std::string>{"reference", "naive", "fused"}));
  }
}

TEST(CApi, ExplainOfAnEmptyCallSaysSo) {
  Sample s;
  s.a.q.shape[2] = s.a.out.shape[2] = s.a.lse.shape[2] = 0;
  const json text = json::parse(explain(s.a));
  EXPECT_EQ(text["mode"], "none");
  EXPECT_EQ(text["chosen"], "");
  EXPECT_NE(text["reason"], "");
}

// As nlohmann::json prints it, so that who compares texts sees no difference.
TEST(CApi, ExplainAndInfoHaveOneLayout) {
  using Json = nlohmann::ordered_json;
  Sample s;
  for (const int mode : {ATTUNE_AUTO, ATTUNE_REFERENCE, ATTUNE_FUSED}) {
    s.a.mode = mode;
    EXPECT_EQ(explain(s.a), Json::parse(explain(s.a)).dump(2));
  }
  EXPECT_EQ(info(), Json::parse(info()).dump(2));
  s.a.q.shape[2] = s.a.out.shape[2] = s.a.lse.shape[2] = 0;
  EXPECT_EQ(explain(s.a), Json::parse(explain(s.a)).dump(2));
}

TEST(CApi, InfoTellsWhatIsUsable) {
  const json text = json::parse(info());
  EXPECT_EQ(text["version"], attune_version());
  EXPECT_EQ(text["abi"], ATTUNE_ABI_VERSION);
  EXPECT_GE(text["threads"], 1);
  bool isa_listed = false;
  for (const json& isa : text["isas"]) isa_listed |= isa == text["isa"];
  EXPECT_TRUE(isa_listed) << text;
  EXPECT_EQ(text["backends"][0]["name"], "cpu");
  EXPECT_EQ(text["backends"][0]["usable"], true);
  EXPECT_EQ(text["backends"][1]["name"], "cuda");
  EXPECT_EQ(text["backends"][1]["usable"], text["backends"][1]["why"] == "");
  EXPECT_NE(text["compiler"], "");
  EXPECT_TRUE(text["caches"].contains("l2_bytes"));
}

TEST(CApi, BackwardNeverReplacesARungAskedForByName) {
  Sample s;
  s.a.mode = ATTUNE_NAIVE;
  EXPECT_EQ(attune_backward(&s.b), ATTUNE_UNSUPPORTED);
  EXPECT_TRUE(mentions(attune_last_error(), "mode naive")) << attune_last_error();
  EXPECT_FALSE(s.written());
  s.a.mode = ATTUNE_FUSED;
  s.a.lse = {};
  EXPECT_EQ(attune_backward(&s.b), ATTUNE_UNSUPPORTED);
  EXPECT_TRUE(mentions(attune_last_error(), "out and lse")) << attune_last_error();
  EXPECT_FALSE(s.written());
}

TEST(CApi, ExplainSaysWhichBackwardPassRuns) {
  Sample s;
  json text = json::parse(explain(s.a))["backward"];
  EXPECT_EQ(text["chosen"], "fused");
  ASSERT_EQ(text["candidates"].size(), 2u);
  EXPECT_EQ(text["candidates"][0]["mode"], "fused");
  EXPECT_EQ(text["candidates"][0]["chosen"], true);
  EXPECT_EQ(text["candidates"][1]["mode"], "reference");
  EXPECT_NE(text["candidates"][1]["reason"], "");
  s.a.lse = {};
  text = json::parse(explain(s.a))["backward"];
  EXPECT_EQ(text["chosen"], "reference");
  EXPECT_TRUE(mentions(text["reason"].get<std::string>().c_str(), "out and lse")) << text;
}

TEST(CApi, LastErrorBelongsToTheThread) {
  Sample good, bad;
  bad.a.q.rank = 2;
  ASSERT_EQ(attune_forward(&bad.a), ATTUNE_INVALID_ARGUMENT);
  const std::string mine = attune_last_error();
  std::thread([&] {
    EXPECT_STREQ(attune_last_error(), "");
    bad.a.q.rank = 4;
    bad.a.scale = -1;
    EXPECT_EQ(attune_forward(&bad.a), ATTUNE_INVALID_ARGUMENT);
    EXPECT_TRUE(mentions(attune_last_error(), "scale"));
  }).join();
  EXPECT_EQ(attune_last_error(), mine);
  ASSERT_EQ(attune_forward(&good.a), ATTUNE_OK);
  EXPECT_EQ(attune_last_error(), mine);
}

TEST(CApi, CallsFromManyThreadsGiveTheSameBits) {
  for (attune_mode mode : {ATTUNE_FUSED, ATTUNE_NAIVE, ATTUNE_REFERENCE}) {
    Sample want;
    want.a.mode = mode;
    want.a.threads = 2;
    ASSERT_EQ(attune_forward(&want.a), ATTUNE_OK) << attune_last_error();
    std::atomic<int> different{0};
    std::vector<std::thread> callers;
    for (int n = 0; n < 8; ++n)
      callers.emplace_back([&] {
        for (int round = 0; round < 20; ++round) {
          Sample s;
          s.a.mode = mode;
          s.a.threads = 2;
          if (attune_forward(&s.a) != ATTUNE_OK || s.m.out != want.m.out || s.m.lse != want.m.lse)
            ++different;
        }
      });
    for (std::thread& t : callers) t.join();
    EXPECT_EQ(different, 0) << "mode " << mode;
  }
}

// Runs the tasks backwards on the calling thread, and counts its calls.
void backwards(void* user, int64_t count, attune_task task, void* arg) {
  ++*static_cast<int*>(user);
  for (int64_t i = count - 1; i >= 0; --i) task(arg, i);
}

TEST(CApi, TheParallelForHookIsUsed) {
  for (attune_mode mode : {ATTUNE_FUSED, ATTUNE_NAIVE, ATTUNE_REFERENCE}) {
    Sample own, hooked;
    own.a.mode = hooked.a.mode = mode;
    own.a.threads = hooked.a.threads = 2;
    int calls = 0;
    hooked.a.parallel_for = backwards;
    hooked.a.parallel_user = &calls;
    ASSERT_EQ(attune_forward(&own.a), ATTUNE_OK) << attune_last_error();
    ASSERT_EQ(attune_forward(&hooked.a), ATTUNE_OK) << attune_last_error();
    EXPECT_GE(calls, 1) << "mode " << mode;
    EXPECT_EQ(own.m.out, hooked.m.out);
    EXPECT_EQ(own.m.lse, hooked.m.lse);
  }
}

// The lowest number is finite: keys that a mask fills with it count, and a row full of it is the
// mean of V, as it is without a mask when all scores are equal.
TEST(CApi, AMaskOfTheLowestNumberForbidsNothing) {
  for (const int mode : {ATTUNE_REFERENCE, ATTUNE_NAIVE, ATTUNE_FUSED}) {
    Sample masked, equal;
    masked.add_mask();
    masked.m.mask.assign(masked.m.mask.size(), -std::numeric_limits<float>::max());
    equal.m.q.assign(equal.m.q.size(), 0.f);
    masked.a.mode = equal.a.mode = mode;
    ASSERT_EQ(attune_forward(&masked.a), ATTUNE_OK) << attune_last_error();
    ASSERT_EQ(attune_forward(&equal.a), ATTUNE_OK) << attune_last_error();
    for (size_t n = 0; n < masked.m.out.size(); ++n)
      ASSERT_NEAR(masked.m.out[n], equal.m.out[n], 1e-6) << "mode " << mode << " at " << n;
    EXPECT_EQ(masked.m.lse[0], -std::numeric_limits<float>::max()) << "mode " << mode;
  }
}

TEST(CApi, NoExceptionComesOut) {
  const struct {
    attune_parallel_for hook;
    attune_status status;
    const char* message;
  } cases[] = {
      {[](void*, int64_t, attune_task, void*) { throw std::bad_alloc(); }, ATTUNE_OUT_OF_MEMORY,
       "out of memory"},
      {[](void*, int64_t, attune_task, void*) { throw std::length_error("x"); },
       ATTUNE_OUT_OF_MEMORY, "out of memory"},
      {[](void*, int64_t, attune_task, void*) { throw std::runtime_error("a broken hook"); },
       ATTUNE_INVALID_ARGUMENT, "parallel_for threw: a broken hook; outputs are incomplete"},
      {[](void*, int64_t, attune_task, void*) { throw 42; }, ATTUNE_INVALID_ARGUMENT,
       "parallel_for threw something that is no std::exception; outputs are incomplete"},
  };
  for (const auto& c : cases) {
    Sample s;
    s.a.mode = ATTUNE_REFERENCE;
    s.a.threads = 2;
    s.a.parallel_for = c.hook;
    EXPECT_EQ(attune_forward(&s.a), c.status);
    EXPECT_STREQ(attune_last_error(), c.message);
    EXPECT_EQ(attune_backward(&s.b), c.status);
  }
}

TEST(CApi, AHookThatLeavesTasksOutIsRefused) {
  const struct {
    attune_parallel_for hook;
    const char* message;
  } cases[] = {
      {[](void*, int64_t, attune_task, void*) {}, "parallel_for returned when 0 of "},
      {[](void*, int64_t count, attune_task task, void* arg) {
         for (int64_t i = 0; i + 1 < count; ++i) task(arg, i);
       },
       "tasks were done"},
      {[](void*, int64_t count, attune_task task, void* arg) {  // as many calls as there are tasks
         for (int64_t i = 0; i < count; ++i) task(arg, i / 2 * 2);
       },
       "tasks were done"},
      {[](void*, int64_t count, attune_task task, void* arg) {
         for (int64_t i = 0; i <= count; ++i) task(arg, i);
       },
       "parallel_for called a task that is not in 0.."},
  };
  for (const attune_mode mode : {ATTUNE_FUSED, ATTUNE_NAIVE, ATTUNE_REFERENCE})
    for (const auto& c : cases) {
      Sample s;
      s.a.mode = mode;
      s.a.threads = 2;
      s.a.parallel_for = c.hook;
      EXPECT_EQ(attune_forward(&s.a), ATTUNE_INVALID_ARGUMENT) << c.message;
      EXPECT_TRUE(mentions(attune_last_error(), c.message)) << attune_last_error();
      if (mode == ATTUNE_REFERENCE) {
        EXPECT_EQ(attune_backward(&s.b), ATTUNE_INVALID_ARGUMENT);
      }
    }
}

// A caller's mode belongs to one thread; the others would round differently.
TEST(CApi, TheFloatingPointModeOfTheCallerDoesNotMatter) {
  for (attune_parallel_for hook : {attune_parallel_for(nullptr), attune_parallel_for(backwards)}) {
    const auto out = [hook]([[maybe_unused]] bool flush, int rounding) {
      Sample s;
      int calls = 0;
      for (float& x : s.m.v) x *= 1e-38f;  // denormals, and sums of them
      s.a.threads = 2;
      s.a.parallel_for = hook;
      s.a.parallel_user = &calls;
      s.a.scale = 0.25;
      const int before = std::fegetround();
      std::fesetround(rounding);
#if defined(__x86_64__)
      const unsigned mode = _mm_getcsr();
      if (flush) _mm_setcsr(mode | 0x8040);
#endif
      const attune_status status = attune_forward(&s.a);
#if defined(__x86_64__)
      EXPECT_EQ(_mm_getcsr() & 0x8040, flush ? 0x8040u : 0u);
      _mm_setcsr(mode);
#endif
      EXPECT_EQ(std::fegetround(), rounding);
      std::fesetround(before);
      EXPECT_EQ(status, ATTUNE_OK) << attune_last_error();
      return s.m.out;
    };
    const std::vector<float> want = out(false, FE_TONEAREST);
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(out(true, FE_TONEAREST), want);
      EXPECT_EQ(out(false, FE_UPWARD), want);
    }
  }
}

// TSan ends a child that starts threads after a fork of many: its own limit, not ours.
#ifndef __SANITIZE_THREAD__
TEST(CApi, AForkedChildComputes) {
  Sample parent;
  parent.a.threads = 2;
  ASSERT_EQ(attune_forward(&parent.a), ATTUNE_OK) << attune_last_error();
  const pid_t child = fork();
  if (child == 0) {
    Sample s;
    s.a.threads = 2;
    const bool same =
        attune_forward(&s.a) == ATTUNE_OK && s.m.out == parent.m.out && s.m.lse == parent.m.lse;
    _exit(same ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

}  // namespace
}  // namespace attune
