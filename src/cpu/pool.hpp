// Threads: a small pool of std::threads behind one parallel_for, and the hook by which a caller
// brings its own.
#pragma once

#include <attune/attune.h>

#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace attune::cpu {

// The caller's hook threw, or did not run every task. The outputs are then incomplete.
struct HookError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs tasks for one call: on the caller's hook, or on the library's pool. Each in the default
// floating-point mode, whatever that of its thread is.
struct Executor {
  int threads = 1;                     // how many tasks run at once, at most
  attune_parallel_for hook = nullptr;  // null: the pool
  void* hook_user = nullptr;

  // fn(index) for index in [0, count), each once; returns when all are done. fn must not throw.
  // Throws HookError for what the hook does wrong, and lets its std::bad_alloc and
  // std::length_error through.
  template <class Fn>
  void parallel_for(int64_t count, Fn&& fn) const {
    using F = std::remove_reference_t<Fn>;
    run(
        count, [](void* arg, int64_t index) { (*static_cast<F*>(arg))(index); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  void run(int64_t count, attune_task task, void* arg) const;
  void run_on_hook(int64_t count, attune_task task, void* arg) const;
};

// The processors that this thread may run on, but no more than the CPU quota of the process's
// control groups pays for. The quota is read once a process.
int usable_threads();

}  // namespace attune::cpu
