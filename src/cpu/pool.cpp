#include "src/cpu/pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "src/cpu/cgroup.hpp"
#include "src/cpu/float_mode.hpp"
#include "src/file.hpp"
#include "src/per_thread.hpp"

namespace attune::cpu {
namespace {

// One job at a time. Workers and the caller take indices from one counter, so a long task delays
// nobody else's.
class Pool {
 public:
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    for (Worker& w : workers_) {
      w.wake.notify_one();
      w.thread.join();
    }
  }

  // False when another call is using the pool, or this thread is already inside it: the caller then
  // runs its tasks itself.
  bool try_run(int workers, int64_t count, attune_task task, void* arg) {
    if (inside) return false;
    std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    grow(workers);
    workers = std::min(workers, int(workers_.size()));
    {
      std::lock_guard lock(mutex_);
      task_ = task;
      arg_ = arg;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      seats_ = workers;
      ++generation_;
    }
    // The first ones, always: those that an earlier call with more threads made sleep on, and their
    // caches and scratch stay out of it.
    for (int i = 0; i < workers; ++i) workers_[size_t(i)].wake.notify_one();
    take_tasks(task, arg, count);
    // All indices are taken; wait for those who still work on one. A worker that wakes from now on
    // finds no seat.
    std::unique_lock lock(mutex_);
    seats_ = 0;
    idle_.wait(lock, [this] { return active_ == 0; });
    return true;
  }

 private:
  struct Worker {
    std::condition_variable wake;
    std::thread thread;
  };

  // A machine that refuses more threads gets the work done with those it gave.
  void grow(int workers) {
    while (int(workers_.size()) < workers) {
      try {
        workers_.emplace_back();
      } catch (const std::bad_alloc&) {
        return;
      }
      Worker& fresh = workers_.back();
      try {
        fresh.thread = std::thread([this, &fresh] { work(fresh); });
      } catch (const std::exception&) {
        workers_.pop_back();
        return;
      }
    }
  }

  void work(Worker& self) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      self.wake.wait(lock, [&] { return stop_ || (generation_ != seen && seats_ > 0); });
      if (stop_) return;
      seen = generation_;
      --seats_;
      ++active_;
      const attune_task task = task_;
      void* const arg = arg_;
      const int64_t count = count_;
      lock.unlock();
      take_tasks(task, arg, count);
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  void take_tasks(attune_task task, void* arg, int64_t count) {
    const DefaultFloatMode mode;
    inside = true;
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) task(arg, i);
    inside = false;
  }

  static ThreadFlag inside;  // this thread is running a task

  std::mutex owner_;            // held by the call that uses the pool
  std::deque<Worker> workers_;  // a deque, since a worker must stay where it is
  std::mutex mutex_;            // guards what follows
  std::condition_variable idle_;
  attune_task task_ = nullptr;
  void* arg_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  uint64_t generation_ = 0;
  int seats_ = 0;   // workers that may still join this job
  int active_ = 0;  // workers inside it
  bool stop_ = false;
};

ThreadFlag Pool::inside;

// Threads do not survive a fork, so the child forgets the parent's pool (its memory stays unused)
// and makes its own when needed. The pool is never destroyed either: at exit other static objects
// may still call in.
std::atomic<Pool*> g_pool{nullptr};

// At load time, since a static local's guard could be held by another thread at a fork.
[[gnu::constructor]] void forget_at_fork() {
  pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr, std::memory_order_release); });
}

Pool& pool() {
  if (Pool* p = g_pool.load(std::memory_order_acquire)) return *p;
  Pool* fresh = new Pool;
  Pool* expected = nullptr;
  if (g_pool.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *expected;
}

}  // namespace

void Executor::run(int64_t count, attune_task task, void* arg) const {
  if (hook != nullptr && count > 1) return run_on_hook(count, task, arg);
  const int64_t workers = std::min<int64_t>(threads, count) - 1;
  if (workers > 0 && pool().try_run(int(workers), count, task, arg)) return;
  const DefaultFloatMode mode;
  for (int64_t i = 0; i < count; ++i) task(arg, i);
}

// The hook is the caller's code: what it is to run is checked, and what it throws is the caller's.
void Executor::run_on_hook(int64_t count, attune_task task, void* arg) const {
  struct Checked {
    attune_task task;
    void* arg;
    int64_t count;
    std::unique_ptr<std::atomic<bool>[]> begun;
    std::atomic<int64_t> done{0};
    std::atomic<bool> out_of_range{false};

    void run(int64_t index) {
      if (index < 0 || index >= count) {
        out_of_range = true;
      } else if (!begun[size_t(index)].exchange(true, std::memory_order_relaxed)) {
        const DefaultFloatMode mode;
        task(arg, index);
        done.fetch_add(1, std::memory_order_release);
      }
    }
  } checked{task, arg, count, std::make_unique<std::atomic<bool>[]>(size_t(count))};

  std::string thrown;
  try {
    hook(
        hook_user, count,
        [](void* self, int64_t index) { static_cast<Checked*>(self)->run(index); }, &checked);
  } catch (const std::bad_alloc&) {
    throw;  // has a status of its own, as has what follows
  } catch (const std::length_error&) {
    throw;
  } catch (const std::exception& e) {
    thrown = std::string("parallel_for threw: ") + e.what();
  } catch (...) {
    thrown = "parallel_for threw something that is no std::exception";
  }
  if (!thrown.empty()) throw HookError(thrown + "; outputs are incomplete");
  if (checked.out_of_range)
    throw HookError("parallel_for called a task that is not in 0.." + std::to_string(count - 1));
  const int64_t done = checked.done.load(std::memory_order_acquire);
  if (done != count)
    throw HookError("parallel_for returned when " + std::to_string(done) + " of " +
                    std::to_string(count) + " tasks were done; outputs are incomplete");
}

namespace {

// 0: no limit. An atomic and not a static local, whose guard another thread could hold at a fork.
int process_quota() {
  static constinit std::atomic<int> known{-1};
  int quota = known.load(std::memory_order_relaxed);
  if (quota < 0) {
    quota = quota_processors(read_text);
    known.store(quota, std::memory_order_relaxed);
  }
  return quota;
}

}  // namespace

int usable_threads() {
  cpu_set_t set;
  int processors = int(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) processors = CPU_COUNT(&set);
  if (const int quota = process_quota(); quota > 0) processors = std::min(processors, quota);
  return std::max(1, processors);
}

}  // namespace attune::cpu
