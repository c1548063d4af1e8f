// The functions of kernels/ptx, as the emulator does them. It takes the place of all of that
// folder's headers.
#pragma once

#include "problem.h"

namespace attune::ptx {

using emulator::machine;
using emulator::Operand;

// ---- bar.h ----

inline void bar_sync(int id, int threads) { machine().barrier(id, threads, true); }
inline void bar_arrive(int id, int threads) { machine().barrier(id, threads, false); }

// ---- cvt.h ----

inline float cvt_f32_f16(uint16_t x) { return float(__builtin_bit_cast(_Float16, x)); }
inline uint16_t cvt_rn_f16_f32(float x) { return __builtin_bit_cast(uint16_t, _Float16(x)); }
inline uint16_t cvt_rn_bf16_f32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return x != x ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint32_t cvt_rn_f16x2_f32(float high, float low) {
  return uint32_t(cvt_rn_f16_f32(high)) << 16 | cvt_rn_f16_f32(low);
}
inline uint32_t cvt_rn_bf16x2_f32(float high, float low) {
  return uint32_t(cvt_rn_bf16_f32(high)) << 16 | cvt_rn_bf16_f32(low);
}

// ---- griddepcontrol.h: a launch begins when the one before it has ended ----

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}

// ---- math.h ----

inline float ex2_approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0 : y;
}
inline float f32_of_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
inline uint32_t fma_rn_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t x, uint32_t y, uint32_t z) {
    const double sum =
        double(cvt_f32_f16(uint16_t(x))) * cvt_f32_f16(uint16_t(y)) + cvt_f32_f16(uint16_t(z));
    return uint32_t(__builtin_bit_cast(uint16_t, _Float16(sum)));
  };
  return one(a >> 16, b >> 16, c >> 16) << 16 | one(a, b, c);
}
inline uint32_t fma_rn_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t x, uint32_t y, uint32_t z) {
    return uint32_t(cvt_rn_bf16_f32(
        fmaf(f32_of_bf16(x & 0xffff), f32_of_bf16(y & 0xffff), f32_of_bf16(z & 0xffff))));
  };
  return one(a >> 16, b >> 16, c >> 16) << 16 | one(a, b, c);
}

// ---- matrix.h, mma.h ----

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem) { machine().ldmatrix(r, smem, false); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t smem) {
  machine().ldmatrix(r, smem, true);
}
inline void stmatrix_x4(uint32_t smem, const uint32_t (&r)[4]) { machine().stmatrix(smem, r); }
inline void mma_m16n8k16_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  machine().mma(c, a, b0, b1, Operand::f16);
}
inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  machine().mma(c, a, b0, b1, Operand::bf16);
}

// ---- mbarrier.h ----

inline void mbarrier_init(uint32_t bar, int count) { machine().mbarrier_init(bar, count); }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t bar) { machine().mbarrier_arrive(bar, 0); }
inline void mbarrier_arrive_expect_tx(uint32_t bar, int bytes) {
  machine().mbarrier_arrive(bar, bytes);
}
inline void mbarrier_try_wait_parity(uint32_t bar, uint32_t parity) {
  machine().mbarrier_wait(bar, parity);
}
inline bool mbarrier_test_wait_parity(uint32_t bar, uint32_t parity) {
  return machine().mbarrier_ended(bar, parity);
}

// ---- memory.h ----

inline uint32_t shared_address(const void* p) { return __cvta_generic_to_shared(p); }
inline void cp_async_cg(uint32_t smem, const void* global, int bytes) {
  machine().cp_async(smem, global, bytes, 16);
}
template <int Size>
void cp_async_ca(uint32_t smem, const void* global, int bytes) {
  static_assert(Size == 4 || Size == 8);
  machine().cp_async(smem, global, bytes, Size);
}
template <int Size>
void cp_async(uint32_t smem, const void* global, int bytes) {
  machine().cp_async(smem, global, bytes, Size);
}
inline void cp_async_commit_group() { machine().cp_async_commit(); }
template <int N>
void cp_async_wait_group() {
  machine().cp_async_wait(N);
}

template <class T>
T load_shared(uint32_t smem) {
  T value;
  memcpy(&value, machine().at(smem, sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store_shared(uint32_t smem, T value) {
  memcpy(machine().at(smem, sizeof(T)), &value, sizeof(T));
}
inline uint4 ld_shared_v4(uint32_t smem) { return load_shared<uint4>(smem); }
inline void st_shared_v4(uint32_t smem, uint4 v) { store_shared(smem, v); }
inline void st_shared_v2(uint32_t smem, uint32_t x, uint32_t y) { store_shared(smem, uint2{x, y}); }
inline uint32_t ld_shared_b32(uint32_t smem) { return load_shared<uint32_t>(smem); }
inline void st_shared_b32(uint32_t smem, uint32_t v) { store_shared(smem, v); }
inline uint32_t ld_shared_u16(uint32_t smem) { return load_shared<uint16_t>(smem); }
inline float ld_shared_f32(uint32_t smem) { return load_shared<float>(smem); }
inline void st_shared_f32(uint32_t smem, float v) { store_shared(smem, v); }

// ---- opaque.h ----

inline uint32_t opaque(uint32_t x) { return x; }
template <int N>
void pin(float (&)[N]) {}

// ---- setmaxnreg.h ----

template <int N>
void setmaxnreg_inc() {}
template <int N>
void setmaxnreg_dec() {}

// ---- tma.h ----

inline void cp_async_bulk_tensor_4d_shared_global(uint32_t smem, const void* map, uint32_t bar,
                                                  int d, int s, int h, int b) {
  const int at[] = {d, s, h, b};
  machine().tensor_load(smem, map, bar, at, 4);
}
inline void cp_async_bulk_tensor_5d_shared_global(uint32_t smem, const void* map, uint32_t bar,
                                                  int d, int h, int s, int hk, int b) {
  const int at[] = {d, h, s, hk, b};
  machine().tensor_load(smem, map, bar, at, 5);
}
inline void cp_async_bulk_tensor_4d_global_shared(const void* map, uint32_t smem, int d, int s,
                                                  int h, int b) {
  const int at[] = {d, s, h, b};
  machine().tensor_store(map, smem, at, 4);
}
inline void cp_async_bulk_tensor_5d_global_shared(const void* map, uint32_t smem, int d, int h,
                                                  int s, int hk, int b) {
  const int at[] = {d, h, s, hk, b};
  machine().tensor_store(map, smem, at, 5);
}
inline void cp_async_bulk_shared_global(uint32_t smem, const void* global, int bytes,
                                        uint32_t bar) {
  machine().bulk_copy(smem, global, bytes, bar);
}
inline void cp_async_bulk_commit_group() { machine().bulk_commit(); }
inline void cp_async_bulk_wait_group_read() { machine().bulk_wait(); }
inline void cp_async_bulk_wait_group() { machine().bulk_wait(); }
inline void fence_proxy_async_shared() {}
inline void fence_proxy_async_global() {}

// ---- wgmma.h ----

inline void wgmma_fence() {}
inline void wgmma_commit_group() { machine().wgmma_commit(); }
template <int N>
void wgmma_wait_group() {
  machine().wgmma_wait(N);
}
inline uint64_t wgmma_matrix(uint32_t smem, int leading) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t(leading >> 4) << 16 |
         (smem & 0x3ffff) >> 4;
}
template <int N, DType T, bool Turned>
struct Wgmma {
  static constexpr Operand kOperand = T == DType::bf16 ? Operand::bf16 : Operand::f16;
  static void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
    machine().wgmma({d, N, nullptr, a, b, add != 0, Turned, kOperand});
  }
  static void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {
    machine().wgmma({d, N, a, 0, b, add != 0, Turned, kOperand});
  }
};

}  // namespace attune::ptx
