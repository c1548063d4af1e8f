// Threads: a small pool of std::threads behind one parallel_for, and the hook by which a caller
// brings its own.
#pragma once

#include <attune/attune.h>

#include <cstdint>
#include <type_traits>

namespace attune::cpu {

// Runs tasks for one call: on the caller's hook, or on the library's pool.
struct Executor {
  int threads = 1;                     // how many tasks run at once, at most
  attune_parallel_for hook = nullptr;  // null: the pool
  void* hook_user = nullptr;

  // fn(index) for index in [0, count), each once; returns when all are done. fn must not throw.
  template <class Fn>
  void parallel_for(int64_t count, Fn&& fn) const {
    using F = std::remove_reference_t<Fn>;
    run(
        count, [](void* arg, int64_t index) { (*static_cast<F*>(arg))(index); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  void run(int64_t count, attune_task task, void* arg) const;
};

// The processors this process may run on.
int usable_threads();

}  // namespace attune::cpu
