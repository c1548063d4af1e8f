// The emulated GPU itself, on kernels that are functions here: what is right passes with every
// order of threads, and what lacks a barrier or a wait shows.
#include "tests/emulator/gpu.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/emulator/machine.h"

namespace attune::emulator {
namespace {

Machine* g_test = nullptr;
Machine& m() { return *g_test; }

struct Shape {
  unsigned threads = 32, shared_bytes = 0, blocks = 1;
};

std::string run(unsigned seed, Shape shape, const std::function<void()>& kernel) {
  Gpu gpu(seed);
  return gpu.run({.blocks = shape.blocks,
                  .threads = shape.threads,
                  .shared_bytes = shape.shared_bytes,
                  .bind = [](Machine* machine) { g_test = machine; },
                  .kernel = kernel});
}

uint32_t& word(uint32_t n) { return *reinterpret_cast<uint32_t*>(m().at(4 * n, 4)); }

// In how many of 20 orders every thread reads its neighbour's number.
int orders_in_which_neighbours_meet(bool barrier) {
  int right = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    int wrong = 0;
    EXPECT_EQ(run(seed, {128, 512},
                  [&] {
                    const unsigned me = m().thread.x;
                    word(me) = me;
                    if (barrier) m().barrier(0, 0, true);
                    wrong += word((me + 1) % 128) != (me + 1) % 128;
                  }),
              "");
    right += wrong == 0;
  }
  return right;
}

TEST(Emulator, ABarrierMakesWritesVisible) { EXPECT_EQ(orders_in_which_neighbours_meet(true), 20); }
TEST(Emulator, AMissingBarrierShows) { EXPECT_EQ(orders_in_which_neighbours_meet(false), 0); }

TEST(Emulator, EveryBlockRunsOnceWithMemoryThatNobodyWrote) {
  std::vector<int> runs(7);
  bool poisoned = true;
  EXPECT_EQ(run(3, {32, 128, 7},
                [&] {
                  poisoned &= word(m().thread.x) == ~0u;
                  word(m().thread.x) = 0;
                  if (m().thread.x == 5) ++runs[m().block.x];
                }),
            "");
  EXPECT_EQ(runs, std::vector<int>(7, 1));
  EXPECT_TRUE(poisoned);
}

TEST(Emulator, ThreadsThatEndAreNotWaitedFor) {
  int met = 0;
  EXPECT_EQ(run(1, {64},
                [&] {
                  if (m().thread.x >= 32) return;
                  m().barrier(0, 0, true);
                  ++met;
                }),
            "");
  EXPECT_EQ(met, 32);
}

TEST(Emulator, NamedBarriersCountThoseThatArriveAlone) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    int early = 0, said = 0;
    EXPECT_EQ(run(seed, {64},
                  [&] {
                    if (m().thread.x < 32) {
                      ++said;
                      m().barrier(3, 64, false);
                    } else {
                      m().barrier(3, 64, true);
                      early += said != 32;
                    }
                  }),
              "");
    EXPECT_EQ(early, 0);
  }
}

TEST(Emulator, AnyThreadsYesReachesAll) {
  int yes = 0, no = 0;
  EXPECT_EQ(run(1, {96},
                [&] {
                  yes += m().barrier_or(m().thread.x == 70);
                  no += !m().barrier_or(false);
                }),
            "");
  EXPECT_EQ(yes, 96);
  EXPECT_EQ(no, 96);
}

TEST(Emulator, DeadlocksAreNamed) {
  const std::string fault = run(1, {64}, [] {
    if (m().thread.x < 32) m().barrier(1, 64, true);
  });
  EXPECT_EQ(fault,
            "block 0: threads wait for others that never come: warp 0 at a barrier of the block;");
}

TEST(Emulator, LanesAtDifferentInstructionsAreAFault) {
  const auto one = [](const void* const*, const void*) {};
  const auto other = [](const void* const* lanes, const void*) { EXPECT_EQ(lanes[0], nullptr); };
  const std::string fault = run(1, {32}, [&] {
    if (m().thread.x < 16)
      m().warp(nullptr, one, nullptr);
    else
      m().warp(nullptr, other, nullptr);
  });
  EXPECT_NE(fault.find("instructions that are not the same"), std::string::npos) << fault;
}

TEST(Emulator, AddressesOutsideSharedMemoryEndTheLaunch) {
  EXPECT_EQ(run(1, {32, 128}, [] { m().at(m().thread.x == 9 ? 128 : 0, 4); }),
            "thread 9 of block 0: the shared address 128 is past the end");
  EXPECT_EQ(run(1, {32, 128}, [] { m().at(m().thread.x == 9 ? 2 : 0, 4); }),
            "thread 9 of block 0: the shared address 2 is not aligned to 4");
  EXPECT_EQ(run(1, {32, 128}, [] { m().shared[128] = 0; }),
            "block 0 wrote past the end of shared memory");
  // And the next launch runs as if nothing had been.
  Gpu gpu(1);
  const auto bind = [](Machine* machine) { g_test = machine; };
  EXPECT_NE(gpu.run({1, 1, 32, 128, bind, [] { m().at(4096, 4); }}), "");
  EXPECT_EQ(gpu.run({1, 1, 32, 128, bind, [] { m().at(0, 4); }}), "");
}

// In how many of 20 orders a thread finds what it copied.
int orders_in_which_a_copy_is_there(int groups_left) {
  const std::vector<uint32_t> data(4, 77);
  int right = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    bool there = false;
    EXPECT_EQ(run(seed, {32, 16},
                  [&] {
                    if (m().thread.x != 0) return;
                    m().cp_async(0, data.data(), 8, 16);
                    m().cp_async_commit();
                    m().cp_async_wait(groups_left);
                    there = word(1) == 77 && word(3) == 0;  // the rest is zeros
                  }),
              "");
    right += there;
  }
  return right;
}

TEST(Emulator, CopiesAreThereWhenTheyAreWaitedFor) {
  EXPECT_EQ(orders_in_which_a_copy_is_there(0), 20);
  EXPECT_GT(orders_in_which_a_copy_is_there(1), 0);
  EXPECT_LT(orders_in_which_a_copy_is_there(1), 20);
}

TEST(Emulator, MbarriersCountArrivalsAndBytes) {
  const std::vector<uint32_t> data(8, 5);
  for (unsigned seed = 0; seed < 10; ++seed) {
    int wrong = 0;
    EXPECT_EQ(run(seed, {64, 64},
                  [&] {
                    if (m().thread.x == 0) {
                      m().mbarrier_init(0, 2);
                      EXPECT_FALSE(m().mbarrier_ended(0, 0));
                      EXPECT_TRUE(m().mbarrier_ended(0, 1));
                    }
                    m().barrier(0, 0, true);
                    if (m().thread.x == 0) {
                      m().mbarrier_arrive(0, 32);
                      m().bulk_copy(32, data.data(), 32, 0);
                    }
                    if (m().thread.x == 40) m().mbarrier_arrive(0, 0);
                    m().mbarrier_wait(0, 0);
                    for (uint32_t n = 8; n < 16; ++n) wrong += word(n) != 5;
                  }),
              "");
    EXPECT_EQ(wrong, 0);
  }
  EXPECT_NE(run(1, {32, 64},
                [] {
                  if (m().thread.x != 0) return;
                  m().mbarrier_init(0, 1);
                  m().mbarrier_arrive(0, 16);
                  m().mbarrier_wait(0, 0);
                })
                .find("warp 0 at an mbarrier"),
            std::string::npos);
}

// ---- tensor cores ----

uint16_t half(float x) { return __builtin_bit_cast(uint16_t, _Float16(x)); }
float number(int row, int column) { return float((row * 7 + column * 3) % 11 - 5); }

TEST(Emulator, MmaMultipliesAsTheManualLaysItOut) {
  float c[32][4];
  EXPECT_EQ(
      run(1, {32},
          [&] {
            const int lane = int(m().thread.x), g = lane / 4, q = lane % 4 * 2;
            const auto pair = [](float low, float high) {
              return half(low) | uint32_t(half(high)) << 16;
            };
            const auto a_at = [&](int row, int k) {
              return pair(number(row, k), number(row, k + 1));
            };
            const auto b_at = [&](int k, int n) { return pair(number(n, k), number(n, k + 1)); };
            const uint32_t a[4] = {a_at(g, q), a_at(g + 8, q), a_at(g, q + 8), a_at(g + 8, q + 8)};
            for (float& x : c[lane]) x = 100;
            m().mma(c[lane], a, b_at(q, g), b_at(q + 8, g), Operand::f16);
          }),
      "");
  for (int row = 0; row < 16; ++row)
    for (int n = 0; n < 8; ++n) {
      float sum = 100;
      for (int k = 0; k < 16; ++k) sum += number(row, k) * number(n, k);
      EXPECT_EQ(c[row % 8 * 4 + n / 2][row / 8 * 2 + n % 2], sum) << row << " " << n;
    }
}

// Rows of 64 halves, as TMA leaves them: 128 bytes, swizzled by the row's number.
void store_half(uint32_t matrix, int row, int column, float x) {
  const uint32_t at = matrix + uint32_t(row * 128 + column * 2);
  const uint16_t bits = half(x);
  std::memcpy(m().at(at ^ (at >> 7 & 7) << 4, 2), &bits, 2);
}

uint64_t matrix(uint32_t at, int leading) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t(leading >> 4) << 16 | at >> 4;
}

// D = A B, A 64x16 at 0, B behind it. Turned: B is [k][n] in two panels of 64 columns.
void check_wgmma(unsigned seed, bool turned, bool wait, int* wrong) {
  constexpr int kN = 72;
  constexpr uint32_t kB = 8192, kPanel = 2048;
  std::vector<std::vector<float>> d(128, std::vector<float>(kN / 2));
  EXPECT_EQ(run(seed, {128, 8192 + 128 * 128},
                [&] {
                  const int t = int(m().thread.x);
                  if (t < 64)
                    for (int k = 0; k < 16; ++k) store_half(0, t, k, number(t, k));
                  if (t < kN)
                    for (int k = 0; k < 16; ++k) {
                      if (turned)
                        store_half(kB + uint32_t(t / 64) * kPanel, k, t % 64, number(t + 1, k));
                      else
                        store_half(kB, t, k, number(t + 1, k));
                    }
                  m().barrier(0, 0, true);
                  m().wgmma({d[size_t(t)].data(), kN, nullptr, matrix(0, 16),
                             matrix(kB, turned ? kPanel : 16), false, turned, Operand::f16});
                  m().wgmma_commit();
                  if (!wait) return;
                  m().wgmma_wait(0);
                }),
            "");
  *wrong = 0;
  for (int row = 0; row < 64; ++row)
    for (int n = 0; n < kN; ++n) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += number(row, k) * number(n + 1, k);
      const int thread = row / 16 * 32 + row % 8 * 4 + n % 8 / 2;
      *wrong += d[size_t(thread)][size_t(n / 8 * 4 + row % 16 / 8 * 2 + n % 2)] != sum;
    }
}

TEST(Emulator, WgmmaReadsSwizzledMatrices) {
  for (unsigned seed = 0; seed < 4; ++seed)
    for (const bool turned : {false, true}) {
      int wrong = 0;
      check_wgmma(seed, turned, true, &wrong);
      EXPECT_EQ(wrong, 0) << turned;
    }
}

TEST(Emulator, ProductsThatNobodyWaitsForAreNotThere) {
  int missing = 0, wrong = 0;
  for (unsigned seed = 0; seed < 10; ++seed) {
    check_wgmma(seed, false, false, &wrong);
    missing += wrong != 0;
  }
  EXPECT_GT(missing, 0);
}

// ---- TMA ----

TEST(Emulator, BoxesAreSwizzledAndEndWithTheTensor) {
  std::vector<uint16_t> tensor(10 * 64), back(10 * 64, 0);
  for (size_t n = 0; n < tensor.size(); ++n) tensor[n] = uint16_t(n);
  const auto map_of = [](void* data) {
    return TensorMapBits{data, {128, 1280, 1280}, {64, 10, 1, 1}, {64, 8, 1, 1}, 4, 2, 128};
  };
  const TensorMapBits from = map_of(tensor.data()), to = map_of(back.data());
  int wrong = 0;
  EXPECT_EQ(run(2, {32, 2048},
                [&] {
                  if (m().thread.x != 0) return;
                  const int at[] = {0, 6, 0, 0};  // rows 6 to 13, of which four exist
                  m().mbarrier_init(1024, 1);
                  m().mbarrier_arrive(1024, 1024);
                  m().tensor_load(0, &from, 1024, at, 4);
                  m().mbarrier_wait(1024, 0);
                  for (uint32_t row = 0; row < 8; ++row)
                    for (uint32_t column = 0; column < 64; ++column) {
                      const uint32_t address = row * 128 + column * 2;
                      uint16_t got;
                      std::memcpy(&got, m().at(address ^ (address >> 7 & 7) << 4, 2), 2);
                      wrong += got != (row < 4 ? (6 + row) * 64 + column : 0);
                    }
                  m().tensor_store(&to, 0, at, 4);
                  m().bulk_commit();
                  m().bulk_wait();
                }),
            "");
  EXPECT_EQ(wrong, 0);
  for (size_t n = 0; n < back.size(); ++n) EXPECT_EQ(back[n], n < 6 * 64 ? 0 : tensor[n]) << n;
}

}  // namespace
}  // namespace attune::emulator
