// A warpgroup with 64 query rows of fp32: what walk.cuh asks of a consumer, with every operand as a
// pair of fp16, hi and lo, and a product of two as hi hi + hi lo + lo hi; what is left out is below
// fp32's own rounding.
//
//   Q    is split here, in place, by a power of two for each row
//   K,V  come split, by a power of two for each tile (split.cuh)
//   P    is split in registers, times 2^14, so that small weights keep their bits too
//
// wgmma cuts off when it adds, which over a whole row would bias O toward 0, the more the longer it
// is. So the products of one tile start from 0, the small ones first, and join O by plain fp32.
#pragma once

#include "../ptx/tma.h"
#include "../tile/finish.h"
#include "rows.cuh"
#include "split.cuh"
#include "walk.cuh"
#include "weights.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
struct ConsumerF32 {
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr int kDimV = round_up(P.dim_v, 8);
  static constexpr int kPanels = panels_of(P.dim), kPanelsV = panels_of(P.dim_v);
  static constexpr int kS = C.block_k / 2, kO = kDimV / 2, kP = C.block_k / 16;
  using QK = ptx::Wgmma<C.block_k, DType::f16, false>;
  using PV = ptx::Wgmma<kDimV, DType::f16, true>;
  // Whether scores are computed from products here, in natural units.
  static constexpr bool kScores = scored(P) || P.mask > MaskKind::boolean;
  // Whether that goes element by element, as the definition has it.
  static constexpr bool kByElement =
      scored(P) || P.block_mask_q != 0 || P.mask_mod || P.mask != MaskKind::none;
  static constexpr float kUp = 0x1p14f;  // what weights are split times; fp16 ends at 2^16
  static constexpr int kUnset = 127;     // exponent_o before the first tile: above every tile's
  static constexpr float kNan = __builtin_bit_cast(float, 0x7fffffff);
  // wgmma cuts off where it should round, so that a sum over D is too small by about this part of
  // itself (emulated: D * 1.0e-9 for normal numbers, D * 7e-9 where all have one sign). Q is made
  // larger by it.
  static constexpr float kCutOff = P.dim * 1.5e-9f;
  static constexpr bool kLimits = kByElement;  // in every tile
  static constexpr bool kPreparesQ = true;     // it is split
  enum Half { kHi, kLo };

  __device__ ConsumerF32(const KernelArgs& args, const Problem& problem, const Control& b,
                         uint32_t smem, int warpgroup)
      : rows(args, problem, b, smem, warpgroup, kScores ? 1.f : args.params.scale * kLog2e) {}

  __device__ void run() {
    Walk<P, C, ConsumerF32>::run(*this);
    rows.repair();
  }

  __device__ bool next_rows() {
    return rows.next_rows([this] { split_q(); });
  }

  // ---- the products ----

  // The same matrix; the compiler does not keep what is added to it through the loop.
  __device__ static uint64_t here(uint64_t matrix) {
    return (matrix >> 32 << 32) | ptx::opaque(uint32_t(matrix));
  }

  __device__ void issue_qk() {
    qk_product<true>(kHi, kLo);
    qk_product<false>(kLo, kHi);
    qk_product<false>(kHi, kHi);
    ptx::wgmma_commit_group();
  }
  template <bool First>
  __device__ void qk_product(Half of_q, Half of_k) {
    const uint64_t q = here(rows.q_matrix),
                   k = here(rows.k_matrix) + uint32_t(rows.k_ring.at * (kLayout.k / 16));
#pragma unroll
    for (int step = 0; step < (P.dim + 15) / 16; ++step)
      QK::ss(s, q + (of_q * kPanels + step / 4) * (panel_bytes(64) / 16) + step % 4 * 2,
             k + (of_k * kPanels + step / 4) * (panel_bytes(C.block_k) / 16) + step % 4 * 2,
             !(First && step == 0));
  }

  __device__ void issue_pv() {
    pv_product<true>(hi, kLo);
    pv_product<false>(lo, kHi);
    pv_product<false>(hi, kHi);
    ptx::wgmma_commit_group();
  }
  template <bool First>
  __device__ void pv_product(const uint32_t (&w)[kP][4], Half of_v) {
    const uint64_t v = here(rows.v_matrix) + uint32_t(rows.v_ring.at * (kLayout.v / 16)) +
                       uint32_t(of_v * kPanelsV * (panel_bytes(C.block_k) / 16));
#pragma unroll
    for (int step = 0; step < kP; ++step)
      PV::rs(t, w[step], v + step * (16 * 128 / 16), !(First && step == 0));
  }

  // O = O * shrink + T: both are held times 2^exponent_o, the smallest of their tiles' exponents,
  // so that none is too large. Then V is given back.
  __device__ void end_pv() {
    ptx::pin(t);
    int exponent = int(ptx::ld_shared_b32(rows.bars.v_note(rows.v_ring.at) + 8));
    if (exponent != exponent_o) {
      const bool vanished = exponent >= kVanished / 2;
      if (vanished) exponent -= kVanished;
      const int least = min(exponent, exponent_o);
      const float of_o = power_of_two(max(least - exponent_o, -127));  // at -127 it is 0
      const float of_t = vanished ? kNan : power_of_two(max(least - exponent, -127));
      exponent_o = least;
      shrink[0] *= of_o;
      shrink[1] *= of_o;
#pragma unroll
      for (int i = 0; i < kO; ++i) t[i] *= of_t;
    }
#pragma unroll
    for (int i = 0; i < kO; ++i) o[i] = fmaf(o[i], shrink[i >> 1 & 1], t[i]);
    __syncwarp();  // every lane has read the note
    rows.release(rows.bars.v.empty[rows.v_ring]);
  }

  // ---- a tile of keys ----

  __device__ void first_tile(int j0) {
#pragma unroll
    for (int i = 0; i < kO; ++i) o[i] = 0;
    exponent_o = kUnset;
    lost = false;
    take_units();
    release_k();
    if (kByElement || !rows.is_inside(j0)) score(j0);
    softmax<true, true>(j0);
  }
  __device__ void read_beside_k() { take_units(); }
  template <bool Limits>
  __device__ void make_scores(int j0) {
    release_k();
    if constexpr (Limits) score(j0);
  }
  template <bool Limits, bool>
  __device__ void weigh(int j0, uint32_t) {
    softmax<false, Limits>(j0);
  }
  __device__ void next_v() {}  // the softmax went on, when PV had ended

  // Every QK of these rows is done; O takes another way.
  __device__ void end_q() { rows.release(rows.bars.q.empty[rows.q_ring]); }
  __device__ void hand_back_q() {}
  __device__ void owe_q(uint32_t) {}

  __device__ void release_k() {
    __syncwarp();  // every lane has read the note beside it
    rows.release(rows.bars.k.empty[rows.k_ring]);
    rows.k_ring.next();
  }

  // The tile's unit with those of the rows. Not 0: times -inf that would be NaN. What a lossy tile
  // has lost, up to 2^-25 of its unit a number, is a score's error of 2^-10 dim c at most: where
  // that is beyond 2^-22 c becomes NaN, and so will the sum of the weights, which records the rows.
  // So does a c beyond fp32: times 0 it is NaN, to which nothing compares.
  __device__ void take_units() {
    const uint32_t note = rows.bars.k_note(rows.k_ring.at);
    const float k_unit = ptx::ld_shared_f32(note), lossy = ptx::ld_shared_f32(note + 4);
    const float scores = kScores ? fabsf(rows.x.params.scale) * kLog2e : 1.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      c[r] = fmaxf(q_unit[r] * k_unit, 0x1p-126f);
      const bool held = c[r] * lossy * scores <= 0x1p-12f / P.dim;
      if (!held) c[r] = kNan;
      if constexpr (P.score_mod) lost |= !held;  // which may take NaN for what it likes
    }
  }

  // ---- Q (split_q.cuh) ----

  __device__ void split_q();
  __device__ static uint32_t chunk_at(uint32_t rows, int row, int panel, int chunk);

  // ---- scores and softmax (softmax_f32.cuh) ----

  __device__ void score(int j0);
  template <bool First, bool Masked>
  __device__ void new_maxima(float (&shift)[2]);
  template <int From, int To>
  __device__ void exponentials(const float (&shift)[2], float (&sum)[2]);
  template <int From, int To>
  __device__ void split_weights(int j0);
  template <bool First, bool Masked>
  __device__ void softmax(int j0);

  // ---- the end of the rows (store_f32.cuh) ----

  __device__ void write(uint32_t done_tile, uint32_t done_count, uint32_t);

  Rows<P, C> rows;
  float o[kO], t[kO], s[kS], m[2], l[2], alpha[2];
  float shrink[2];        // alpha of the tile whose PV is under way
  float q_unit[2], c[2];  // products times c are scores
  uint32_t hi[kP][4], lo[kP][4];
  int exponent_o;  // O is held times 2^this
  bool lost;       // scores of these rows have lost bits
};

}  // namespace attune

#include "softmax_f32.cuh"
#include "split_q.cuh"
#include "store_f32.cuh"
