#include "src/cpu/pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

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
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  // False when another call is using the pool, or this thread is already inside it: the caller then
  // runs its tasks itself.
  bool try_run(int workers, int64_t count, attune_task task, void* arg) {
    if (inside) return false;
    std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    grow(workers);
    {
      std::lock_guard lock(mutex_);
      task_ = task;
      arg_ = arg;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      seats_ = std::min<int>(workers, int(threads_.size()));
      ++generation_;
    }
    wake_.notify_all();
    take_tasks(task, arg, count);
    // All indices are taken; wait for those who still work on one. A worker that wakes from now on
    // finds no seat.
    std::unique_lock lock(mutex_);
    seats_ = 0;
    idle_.wait(lock, [this] { return active_ == 0; });
    return true;
  }

 private:
  // A machine that refuses more threads gets the work done with those it gave.
  void grow(int workers) {
    while (int(threads_.size()) < workers) {
      try {
        threads_.emplace_back([this] { worker(); });
      } catch (const std::system_error&) {
        return;
      }
    }
  }

  void worker() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || (generation_ != seen && seats_ > 0); });
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
    inside = true;
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) task(arg, i);
    inside = false;
  }

  static ThreadFlag inside;  // this thread is running a task

  std::mutex owner_;  // held by the call that uses the pool
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, idle_;
  std::vector<std::thread> threads_;
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
  if (hook != nullptr && count > 1) return hook(hook_user, count, task, arg);
  const int64_t workers = std::min<int64_t>(threads, count) - 1;
  if (workers > 0 && pool().try_run(int(workers), count, task, arg)) return;
  for (int64_t i = 0; i < count; ++i) task(arg, i);
}

int usable_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace attune::cpu
