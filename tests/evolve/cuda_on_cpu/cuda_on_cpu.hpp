// What a CUDA program of examples/cuda_attention needs beside its kernels, on the emulated GPU of
// tests/emulator: fp16, launches, and the instructions that the programs write in PTX, by their
// names there. Text is prepared by cuda_on_cpu.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "emulator/cuda.h"
#include "emulator/gpu.hpp"

#define __forceinline__ inline

using half = _Float16;
struct half2 {
  half x, y;
};
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

namespace cuda_on_cpu {

using attune::emulator::machine;

inline unsigned the_seed = 1;

template <class Kernel>
void launch(dim3 grid, dim3 threads, size_t shared_bytes, cudaStream_t, const Kernel& kernel) {
  attune::emulator::Gpu gpu(the_seed);
  const std::string fault =
      gpu.run({.blocks = grid.x,
               .rows = grid.y,
               .threads = threads.x,
               .shared_bytes = unsigned(shared_bytes),
               .bind = [](attune::emulator::Machine* m) { attune::emulator::g_machine = m; },
               .kernel = kernel});
  if (fault.empty()) return;
  std::fprintf(stderr, "cuda_on_cpu: %s\n", fault.c_str());
  std::abort();
}

// ---- The instructions, by the names that the programs give them ----

inline int opaque(int x) { return x; }
inline float power_of_two(float x) { return std::exp2(x); }

inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  machine().mma(c, a, b0, b1, attune::emulator::Operand::f16);
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  machine().ldmatrix(r, address, false);
}
inline void load_transposed(uint32_t (&r)[4], uint32_t address) {
  machine().ldmatrix(r, address, true);
}

inline void copy_16(uint32_t to, const void* from, int bytes) {
  machine().cp_async(to, from, bytes, 16);
}
inline void copy_4(uint32_t to, const void* from, int bytes) {
  machine().cp_async(to, from, bytes, 4);
}
inline void wait_for_copies() {
  machine().cp_async_commit();
  machine().cp_async_wait(0);
}

inline uint4 load_16(uint32_t address) {
  uint4 v;
  memcpy(&v, machine().at(address, 16), 16);
  return v;
}
inline void store_16(uint32_t address, uint4 v) { memcpy(machine().at(address, 16), &v, 16); }
inline void store_4(uint32_t address, uint32_t v) { memcpy(machine().at(address, 4), &v, 4); }

}  // namespace cuda_on_cpu

extern "C" void cuda_on_cpu_begin(unsigned seed) { cuda_on_cpu::the_seed = seed; }
