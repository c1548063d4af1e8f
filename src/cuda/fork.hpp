// A lock that no other thread holds at the moment of a fork, so that a child finds what it guards
// whole.
#pragma once

#include <pthread.h>

#include <mutex>

namespace attune::cuda {

// One global object for each global mutex. Nothing else may be locked while Mutex is held.
template <std::mutex& Mutex>
struct HeldOverFork {
  HeldOverFork() {
    pthread_atfork([] { Mutex.lock(); }, [] { Mutex.unlock(); }, [] { Mutex.unlock(); });
  }
};

}  // namespace attune::cuda
