#include "src/cpu/thread_scratch.hpp"

#include <cstdlib>

#include "src/per_thread.hpp"

namespace attune::cpu {
namespace {

struct ThreadScratch {
  ThreadScratch() = default;
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;
  ~ThreadScratch() { std::free(memory); }

  void* memory = nullptr;
  size_t capacity = 0;
};

const PerThread<ThreadScratch> g_scratch;

}  // namespace

void* thread_scratch(size_t bytes) {
  ThreadScratch* mine = g_scratch.get();
  if (mine == nullptr) return nullptr;
  if (mine->capacity < bytes) {
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    std::free(mine->memory);
    mine->memory = std::aligned_alloc(4096, rounded);
    mine->capacity = mine->memory != nullptr ? rounded : 0;
  }
  return mine->memory;
}

}  // namespace attune::cpu
