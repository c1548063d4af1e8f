// The block that runs: its fibers, its shared memory, and what is under way.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/emulator/gpu.hpp"
#include "tests/emulator/machine.h"

namespace attune::emulator {

// Something that threads wait for: it turns when it has happened.
using Turn = uint64_t;

// A copy by cp.async.
struct Copy {
  uint32_t to;
  const void* from;
  int bytes, size;
};

inline constexpr uint64_t kNowhere = ~uint64_t{0};

struct Fiber {
  ucontext_t start;
  std::jmp_buf place;
  std::unique_ptr<char[]> stack;
  Index index;
  bool started = false, ended = false;
  const Turn* waits_for = nullptr;  // until this is no longer `seen`
  Turn seen = 0;
  const char* why = "";  // it waits
  uint64_t pauses_until = 0;
  bool polls = false;            // it only looked whether it can go on
  uint64_t waits_at = kNowhere;  // of an mbarrier, the address and the phase's parity
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};

struct Barrier {
  int arrived = 0;
  bool all = false;  // it waits for all threads of the block
  bool any = false, said = false;
  Turn turn = 0;
};

struct Mbarrier {
  int count = 0, pending = 0;
  int64_t bytes = 0;  // expected and not there
  Turn phase = 0;
};

// A copy by TMA.
struct BulkCopy {
  bool store = false;
  uint32_t shared = 0, bar = 0;
  const void* from = nullptr;  // a piece of memory
  int bytes = 0;
  bool boxed = false;
  TensorMapBits map = {};  // of a box
  int at[5] = {};
  const Fiber* owner = nullptr;  // of a store
};

// A wgmma of one warp: 16 rows of the product.
struct Product {
  WarpgroupProduct shape;
  int warp;  // of its warpgroup
  float* d[32];
  uint32_t a[32][4];
};

struct Warp {
  const void* lanes[32];
  void (*work)(const void* const*, const void*) = nullptr;  // of the instruction where they meet
  int arrived = 0;
  Turn turn = 0;
  std::vector<Product> open;
  std::vector<std::vector<Product>> groups;
};

class Gpu::Block final : public Machine {
 public:
  explicit Block(unsigned seed) : dice_(seed) {}
  std::string run(const Launch& launch);

  uint8_t* at(uint32_t address, int bytes) override;
  void barrier(int id, int threads, bool wait) override;
  bool barrier_or(bool mine) override;
  void warp(const void* mine, void (*work)(const void* const*, const void*),
            const void* context) override;
  void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, Operand operand) override;
  void ldmatrix(uint32_t* r, uint32_t address, bool transposed) override;
  void stmatrix(uint32_t address, const uint32_t* r) override;
  void cp_async(uint32_t to, const void* from, int bytes, int size) override;
  void cp_async_commit() override;
  void cp_async_wait(int groups) override;
  void mbarrier_init(uint32_t at, int count) override;
  void mbarrier_arrive(uint32_t at, int bytes) override;
  bool mbarrier_ended(uint32_t at, uint32_t parity) override;
  void mbarrier_wait(uint32_t at, uint32_t parity) override;
  void bulk_copy(uint32_t to, const void* from, int bytes, uint32_t bar) override;
  void tensor_load(uint32_t to, const void* map, uint32_t bar, const int* at, int rank) override;
  void tensor_store(const void* map, uint32_t from, const int* at, int rank) override;
  void bulk_commit() override { maybe_pause(); }
  void bulk_wait() override;
  void wgmma(const WarpgroupProduct& product) override;
  void wgmma_commit() override;
  void wgmma_wait(int groups) override;

 private:
  static void begin_fiber();

  void run_block(unsigned number);
  void draw_order();
  bool run_round(unsigned warp_number);
  bool run_one_warp();
  void start_fiber(unsigned number);
  void resume(Fiber* fiber);
  void hand_over();
  void wait_for(const Turn& turn, const char* why);
  void maybe_pause();
  void end_of_thread();
  [[noreturn]] void fail(const std::string& why);
  void deadlock();
  bool chance(unsigned one_in) { return dice_() % one_in == 0; }

  Warp& my_warp() { return warps_[thread.x / 32]; }
  void check_barrier(Barrier* b, int threads);
  Mbarrier& mbarrier(uint32_t at);
  void check_phase(Mbarrier* b);
  bool may_come(const Fiber& fiber) const;
  void do_copy(const Copy& copy);
  void begin_bulk(const BulkCopy& copy);
  void do_bulk(BulkCopy copy);
  void do_some_bulk();
  void move_box(const BulkCopy& copy);
  void do_product(const Product& product);
  void do_groups(Warp* warp, size_t left);

  std::mt19937 dice_;
  const Launch* launch_ = nullptr;
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<unsigned> order_;
  Fiber* current_ = nullptr;
  std::jmp_buf scheduler_;
  unsigned alive_ = 0;
  uint64_t tick_ = 0, last_pause_ = 0;
  std::string fault_;

  std::vector<Warp> warps_;
  Barrier barriers_[16];
  std::unordered_map<uint32_t, Mbarrier> mbarriers_;
  std::vector<BulkCopy> bulk_;
};

}  // namespace attune::emulator
