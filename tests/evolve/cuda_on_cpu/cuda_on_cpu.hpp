// Runs a CUDA program on a CPU, slowly: enough of the language for the programs of
// examples/cuda_attention, so that indices, layouts and barriers can be tested without a GPU.
//
// Blocks run one after the other. The threads of a block are contexts that hand over at barriers
// and at instructions of a whole warp, in an order that is drawn anew each time: a missing barrier
// shows as a wrong result. Asynchronous copies take place when they begin or when they are waited
// for, as the test says: what is right must be right with both. Text is prepared by cuda_on_cpu.py.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#define __global__ static
#define __device__
#define __host__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __forceinline__ inline
#define threadIdx (cuda_on_cpu::block().current->index)
#define blockDim (cuda_on_cpu::block().size)
#define blockIdx (cuda_on_cpu::block().at)

using half = _Float16;
struct half2 {
  half x, y;
};
struct float2 {
  float x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

using cudaStream_t = void*;
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8;
template <class Kernel>
int cudaFuncSetAttribute(Kernel, int, int) {
  return 0;
}

inline float __half2float(half x) { return float(x); }
inline half __float2half(float x) { return half(x); }
inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
using std::max;
using std::min;

namespace cuda_on_cpu {

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_on_cpu: %s\n", what);
  std::abort();
}

struct Index {
  int x = 0, y = 0, z = 0;
};

struct Copy {
  uint32_t to;
  const void* from;
  int bytes, size;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Index index;
  bool ended = false;
  std::vector<Copy> copies;  // begun and not waited for
};

// Where threads meet.
struct Meeting {
  const void* said[1024];
  int arrived = 0;
  uint64_t turn = 0;
};

struct Block {
  Index at, size;
  std::vector<Thread> threads;
  Thread* current = nullptr;
  Meeting all, warp[32];
  int alive = 0;
  alignas(1024) uint8_t shared[232448];
  int shared_bytes = 0;
  ucontext_t scheduler;
  std::mt19937 dice;
  bool eager = false;  // copies take place when they begin
  const std::function<void()>* kernel = nullptr;
  uint64_t progress = 0;
};

inline Block& block() {
  static Block the_block;
  return the_block;
}

inline void hand_over() { swapcontext(&block().current->context, &block().scheduler); }

// Waits for all of a group of `size` threads; the last one does the work for all of them.
template <class Work>
void meet(Meeting& m, int size, int place, const void* mine, const Work& work) {
  m.said[place] = mine;
  const uint64_t turn = m.turn;
  if (++m.arrived == size) {
    work(m.said);
    m.arrived = 0;
    ++m.turn;
    ++block().progress;
    return;
  }
  while (m.turn == turn) hand_over();
}

inline int lane() { return block().current->index.x % 32; }

template <class Work>
void as_warp(const void* mine, const Work& work) {
  meet(block().warp[block().current->index.x / 32], 32, lane(), mine, work);
}

inline void barrier() {
  meet(block().all, block().alive, 0, nullptr, [](const void**) {});
}

// What lies at an address of shared memory, which is an offset here.
inline uint8_t* shared_at(uint32_t address, int bytes) {
  if (address % bytes != 0) fail("an address in shared memory is not aligned");
  if (int64_t(address) + bytes > block().shared_bytes) fail("past the end of shared memory");
  return block().shared + address;
}

inline void run_thread() {
  (*block().kernel)();
  block().current->ended = true;
  --block().alive;
  ++block().progress;
  hand_over();
}

inline void run_block(int threads, const std::function<void()>& kernel) {
  Block& b = block();
  b.kernel = &kernel;
  b.threads.resize(threads);
  b.alive = threads;
  b.all.arrived = 0;
  for (Meeting& m : b.warp) m.arrived = 0;
  constexpr size_t kStack = 256 << 10;
  for (int t = 0; t < threads; ++t) {
    Thread& thread = b.threads[t];
    if (!thread.stack) thread.stack.reset(new char[kStack]);
    thread.index.x = t;
    thread.ended = false;
    thread.copies.clear();
    getcontext(&thread.context);
    thread.context.uc_stack = {thread.stack.get(), 0, kStack};
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, run_thread, 0);
  }
  std::vector<int> order(threads);
  for (int t = 0; t < threads; ++t) order[t] = t;
  while (b.alive > 0) {
    const uint64_t before = b.progress;
    std::shuffle(order.begin(), order.end(), b.dice);
    for (const int t : order) {
      if (b.threads[t].ended) continue;
      b.current = &b.threads[t];
      swapcontext(&b.scheduler, &b.current->context);
    }
    if (b.progress == before) fail("threads wait for others that never come");
  }
}

template <class Kernel>
void launch(dim3 grid, dim3 threads, size_t shared_bytes, cudaStream_t, const Kernel& kernel) {
  Block& b = block();
  if (shared_bytes > sizeof b.shared - 1024) fail("a block has no such amount of shared memory");
  if (grid.x == 0 || threads.x == 0 || threads.x > 1024) fail("no such grid");
  b.shared_bytes = int(shared_bytes);
  b.size = {int(threads.x), 1, 1};
  const std::function<void()> call = kernel;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      b.at = {int(x), int(y), 0};
      std::memset(b.shared, 0x7e, sizeof b.shared);  // as halves: NaN
      run_block(int(threads.x), call);
    }
}

inline void do_copy(const Copy& c) {
  uint8_t* to = shared_at(c.to, c.size);
  if (c.bytes > 0) std::memcpy(to, c.from, c.bytes);
  std::memset(to + c.bytes, 0, c.size - c.bytes);
}

// ---- The instructions, by the names that the programs give them ----

inline int opaque(int x) { return x; }
inline float power_of_two(float x) { return std::exp2(x); }

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Part {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  };
  const Part mine{c, a, {b0, b1}};
  as_warp(&mine, [](const void** said) {
    const auto part = [&](int lane) { return static_cast<const Part*>(said[lane]); };
    const auto half_of = [](uint32_t pair, int n) {
      const uint16_t bits = uint16_t(pair >> 16 * n);
      half value;
      std::memcpy(&value, &bits, 2);
      return float(value);
    };
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 2; ++n) {
        const int g = lane / 4, q = lane % 4;
        for (int r = 0; r < 4; ++r)
          a[g + r % 2 * 8][2 * q + r / 2 * 8 + n] = half_of(part(lane)->a[r], n);
        for (int r = 0; r < 2; ++r) b[2 * q + r * 8 + n][g] = half_of(part(lane)->b[r], n);
      }
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 16; ++k)
          part(lane)->c[e] += a[lane / 4 + e / 2 * 8][k] * b[k][lane % 4 * 2 + e % 2];
  });
}

template <bool Transposed>
void load_four(uint32_t (&r)[4], uint32_t address) {
  struct Part {
    uint32_t* r;
    uint32_t address;
  };
  const Part mine{r, address};
  as_warp(&mine, [](const void** said) {
    uint16_t matrix[4][8][8];
    for (int lane = 0; lane < 32; ++lane)
      std::memcpy(matrix[lane / 8][lane % 8],
                  shared_at(static_cast<const Part*>(said[lane])->address, 16), 16);
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 4; ++n) {
        const int g = lane / 4, q = lane % 4 * 2;
        static_cast<const Part*>(said[lane])->r[n] =
            Transposed ? matrix[n][q][g] | uint32_t(matrix[n][q + 1][g]) << 16
                       : matrix[n][g][q] | uint32_t(matrix[n][g][q + 1]) << 16;
      }
  });
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) { load_four<false>(r, address); }
inline void load_transposed(uint32_t (&r)[4], uint32_t address) { load_four<true>(r, address); }

inline void copy(uint32_t to, const void* from, int bytes, int size) {
  if (bytes != 0 && bytes != size) fail("a copy of another size");
  const Copy c{to, from, bytes, size};
  if (block().eager)
    do_copy(c);
  else
    block().current->copies.push_back(c);
}
inline void copy_16(uint32_t to, const void* from, int bytes) { copy(to, from, bytes, 16); }
inline void copy_4(uint32_t to, const void* from, int bytes) { copy(to, from, bytes, 4); }
inline void wait_for_copies() {
  for (const Copy& c : block().current->copies) do_copy(c);
  block().current->copies.clear();
}

inline uint4 load_16(uint32_t address) {
  uint4 v;
  std::memcpy(&v, shared_at(address, 16), 16);
  return v;
}
inline void store_16(uint32_t address, uint4 v) { std::memcpy(shared_at(address, 16), &v, 16); }
inline void store_4(uint32_t address, uint32_t v) { std::memcpy(shared_at(address, 4), &v, 4); }

template <class T>
T from_lane(T value, const std::function<int(int)>& source) {
  struct Part {
    T value, got;
  };
  Part mine{value, value};
  as_warp(&mine, [&](const void** said) {
    for (int n = 0; n < 32; ++n) {
      Part* part = const_cast<Part*>(static_cast<const Part*>(said[n]));
      part->got = static_cast<const Part*>(said[source(n)])->value;
    }
  });
  return mine.got;
}

}  // namespace cuda_on_cpu

inline uint32_t __cvta_generic_to_shared(const void* p) {
  return uint32_t(static_cast<const uint8_t*>(p) - cuda_on_cpu::block().shared);
}
inline void __syncthreads() { cuda_on_cpu::barrier(); }
inline void __syncwarp() {
  cuda_on_cpu::as_warp(nullptr, [](const void**) {});
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return cuda_on_cpu::from_lane<T>(value, [mask](int lane) { return lane ^ mask; });
}
// The lanes of a warp may ask for different ones.
template <class T>
T __shfl_sync(unsigned, T value, int source) {
  struct Part {
    T value, got;
    int source;
  };
  Part mine{value, value, source};
  cuda_on_cpu::as_warp(&mine, [](const void** said) {
    for (int n = 0; n < 32; ++n) {
      Part* part = const_cast<Part*>(static_cast<const Part*>(said[n]));
      part->got = static_cast<const Part*>(said[part->source % 32])->value;
    }
  });
  return mine.got;
}
inline bool __any_sync(unsigned, bool value) {
  struct Part {
    bool value, got;
  };
  Part mine{value, false};
  cuda_on_cpu::as_warp(&mine, [](const void** said) {
    bool any = false;
    for (int n = 0; n < 32; ++n) any |= static_cast<const Part*>(said[n])->value;
    for (int n = 0; n < 32; ++n) const_cast<Part*>(static_cast<const Part*>(said[n]))->got = any;
  });
  return mine.got;
}

// The order of threads, and when copies take place.
extern "C" void cuda_on_cpu_begin(unsigned seed, bool eager_copies) {
  cuda_on_cpu::block().dice.seed(seed);
  cuda_on_cpu::block().eager = eager_copies;
}
