// What runs a kernel on a CPU, as the kernel sees it. Threads of a block are fibers of one thread:
// they hand over where they wait for each other. Included by the kernels' own translation units, so
// that it brings no C++ header.
#pragma once

#include <stdint.h>

namespace attune::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum class Operand { f16, bf16 };

// One wgmma of a lane: D (m64, n columns) += A B.
struct WarpgroupProduct {
  float* d;
  int n;
  const uint32_t* a;  // four registers; null: A lies in shared memory
  uint64_t a_matrix, b_matrix;
  bool add;     // or D = A B
  bool turned;  // B's rows are the columns of the product's depth
  Operand operand;
};

class Machine {
 public:
  // Of the thread that runs.
  Index thread, block, threads, blocks;

  // Shared memory by its 32-bit addresses: offsets from `shared`, which is aligned to 1024 bytes.
  uint8_t* shared = nullptr;
  // Where `bytes` at an address are; an address that is not aligned to them, or is outside of what
  // the block has, ends the launch with an error.
  virtual uint8_t* at(uint32_t address, int bytes) = 0;

  // ---- meetings ----

  // A named barrier. threads 0: all of the block.
  virtual void barrier(int id, int threads, bool wait) = 0;
  // Of all threads of the block: whether one says yes.
  virtual bool barrier_or(bool mine) = 0;
  // All lanes of the warp show something, and one of them does the work for all.
  virtual void warp(const void* mine, void (*work)(const void* const* lanes, const void* context),
                    const void* context) = 0;

  // ---- tensor cores of a warp ----

  virtual void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, Operand operand) = 0;
  virtual void ldmatrix(uint32_t* r, uint32_t address, bool transposed) = 0;
  virtual void stmatrix(uint32_t address, const uint32_t* r) = 0;

  // ---- asynchronous copies of a thread ----

  virtual void cp_async(uint32_t to, const void* from, int bytes, int size) = 0;
  virtual void cp_async_commit() = 0;
  virtual void cp_async_wait(int groups) = 0;

  // ---- mbarriers ----

  virtual void mbarrier_init(uint32_t at, int count) = 0;
  virtual void mbarrier_arrive(uint32_t at, int bytes) = 0;
  virtual bool mbarrier_ended(uint32_t at, uint32_t parity) = 0;
  virtual void mbarrier_wait(uint32_t at, uint32_t parity) = 0;

  // ---- TMA ----

  virtual void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t bar) = 0;
  virtual void tensor_load(uint32_t to, const void* map, uint32_t bar, const int* at, int rank) = 0;
  virtual void tensor_store(const void* map, uint32_t from, const int* at, int rank) = 0;
  virtual void bulk_commit() = 0;
  virtual void bulk_wait() = 0;

  // ---- tensor cores of a warpgroup ----

  virtual void wgmma(const WarpgroupProduct& product) = 0;
  virtual void wgmma_commit() = 0;
  virtual void wgmma_wait(int groups) = 0;

 protected:
  ~Machine() = default;
};

// Of the kernel's shared object; set before each launch.
inline Machine* g_machine = nullptr;
inline Machine& machine() { return *g_machine; }

}  // namespace attune::emulator
