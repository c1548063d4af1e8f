#include "src/cpu/pool.hpp"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/cpu/cgroup.hpp"

namespace attune::cpu {
namespace {

// Counts how often each index came, so that "each once" can be checked.
class Visits {
 public:
  explicit Visits(int64_t count) : visits_(new std::atomic<int>[size_t(count)]()), count_(count) {}
  void at(int64_t index) { visits_[size_t(index)].fetch_add(1, std::memory_order_relaxed); }
  bool each_once() const {
    return std::all_of(visits_.get(), visits_.get() + count_,
                       [](const std::atomic<int>& n) { return n == 1; });
  }

 private:
  std::unique_ptr<std::atomic<int>[]> visits_;
  int64_t count_;
};

bool covers_each_once(const Executor& executor, int64_t count) {
  Visits visits(count);
  executor.parallel_for(count, [&](int64_t i) { visits.at(i); });
  return visits.each_once();
}

TEST(Pool, EveryIndexExactlyOnce) {
  for (int threads = 1; threads <= 5; ++threads)
    for (int64_t count : {0, 1, 2, 3, 7, 64, 1000})
      EXPECT_TRUE(covers_each_once({threads}, count)) << threads << " " << count;
}

TEST(Pool, ManyShortJobsInARow) {
  for (int round = 0; round < 3000; ++round)
    ASSERT_TRUE(covers_each_once({1 + round % 4}, round % 6)) << round;
}

TEST(Pool, MoreThreadsThanTasks) {
  EXPECT_TRUE(covers_each_once({16}, 3));
  EXPECT_TRUE(covers_each_once({16}, 1));
}

// Two tasks that wait for each other finish only when they run at once.
TEST(Pool, TasksRunAtOnce) {
  std::mutex mutex;
  std::condition_variable met;
  int arrived = 0;
  std::atomic<int> alone{0};
  Executor{2}.parallel_for(2, [&](int64_t) {
    std::unique_lock lock(mutex);
    ++arrived;
    met.notify_all();
    if (!met.wait_for(lock, std::chrono::seconds(20), [&] { return arrived == 2; })) ++alone;
  });
  EXPECT_EQ(alone, 0);
}

TEST(Pool, WritesOfTasksAreSeenAfterwards) {
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> squares(64);
    Executor{3}.parallel_for(64, [&](int64_t i) { squares[size_t(i)] = i * i; });
    for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(squares[size_t(i)], i * i);
  }
}

TEST(Pool, NestedCallsFinish) {
  constexpr int64_t kOuter = 9, kInner = 11;
  Visits visits(kOuter * kInner);
  const Executor executor{3};
  executor.parallel_for(kOuter, [&](int64_t i) {
    executor.parallel_for(kInner, [&](int64_t j) { visits.at(i * kInner + j); });
  });
  EXPECT_TRUE(visits.each_once());
}

TEST(Pool, ManyCallersAtOnce) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int n = 0; n < 8; ++n)
    callers.emplace_back([&, n] {
      for (int round = 0; round < 200; ++round)
        if (!covers_each_once({1 + (n + round) % 4}, 1 + round % 17)) ++wrong;
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

// How often each thread of this process gave up its processor to wait.
std::map<std::string, std::string> waits() {
  std::map<std::string, std::string> counts;
  DIR* threads = opendir("/proc/self/task");
  if (threads == nullptr) return counts;
  while (const dirent* thread = readdir(threads)) {
    std::ifstream status(std::string("/proc/self/task/") + thread->d_name + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches")) counts[thread->d_name] = line;
  }
  closedir(threads);
  return counts;
}

// A worker that was woken for nothing waits again, and that is counted. The workers of the large
// call may take a while to fall asleep, so some round must be quiet, not every one.
TEST(Pool, ALargeCallLeavesLaterOnesAlone) {
  constexpr int kMany = 48;
  ASSERT_TRUE(covers_each_once({kMany}, 10 * kMany));
  size_t woken = kMany;
  for (int round = 0; round < 200 && woken > 2; ++round) {
    const auto before = waits();
    for (int call = 0; call < 20; ++call) ASSERT_TRUE(covers_each_once({2}, 8));
    woken = 0;
    for (const auto& [thread, count] : waits()) {
      const auto earlier = before.find(thread);
      woken += earlier == before.end() || earlier->second != count;
    }
  }
  EXPECT_LE(woken, 2u) << "this thread and one worker have work to do";
}

TEST(Pool, TheHookTakesThePoolsPlace) {
  struct Seen {
    int calls = 0;
    int64_t count = 0;
  } seen;
  Executor executor{2};
  executor.hook_user = &seen;
  executor.hook = [](void* user, int64_t count, attune_task task, void* arg) {
    auto* s = static_cast<Seen*>(user);
    ++s->calls;
    s->count = count;
    for (int64_t i = count - 1; i >= 0; --i) task(arg, i);
  };
  EXPECT_TRUE(covers_each_once(executor, 13));
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.count, 13);
}

TEST(Pool, UsableThreadsFollowsAffinity) {
  EXPECT_GE(usable_threads(), 1);
  std::thread([] {
    cpu_set_t allowed, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    const int quota = quota_processors([](const std::string& path) {
      std::ifstream file(path);
      return std::string(std::istreambuf_iterator<char>(file), {});
    });
    const int all = CPU_COUNT(&allowed);
    EXPECT_EQ(usable_threads(), quota > 0 ? std::min(all, quota) : all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_threads(), 1);
  }).join();
}

// TSan ends a child that starts threads after a fork of many: its own limit, not ours.
#ifndef __SANITIZE_THREAD__
bool child_succeeds(bool (*work)()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs is a failure, not a test that never ends
    _exit(work() ? 0 : 1);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

bool pool_works() { return covers_each_once({3}, 100) && covers_each_once({2}, 7); }

TEST(Pool, ChildrenStartAnew) {
  ASSERT_TRUE(pool_works());
  EXPECT_TRUE(child_succeeds(pool_works));
  EXPECT_TRUE(child_succeeds([] { return pool_works() && child_succeeds(pool_works); }));
  EXPECT_TRUE(pool_works());
}

TEST(Pool, ForkWhileAnotherThreadIsInsideACall) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) covers_each_once({3}, 50);
  });
  for (int round = 0; round < 20; ++round) EXPECT_TRUE(child_succeeds(pool_works)) << round;
  stop = true;
  busy.join();
}
#endif

}  // namespace
}  // namespace attune::cpu
