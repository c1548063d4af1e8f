// A warpgroup with 64 query rows of fp16 or bf16: what walk.cuh asks of a consumer. Products are
// here; scores.cuh, softmax.cuh and store.cuh have the rest.
#pragma once

#include "../ptx/tma.h"
#include "../tile/finish.h"
#include "rows.cuh"
#include "staged_mask.cuh"
#include "walk.cuh"
#include "weights.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
struct Consumer {
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr bool kFirstMax = C.maxima == RowMaxima::first;
  static constexpr int kDimV = round_up(P.dim_v, 8);
  static constexpr int kS = C.block_k / 2, kO = kDimV / 2, kP = C.block_k / 16;
  static constexpr bool kTensorSums = C.sums == RowSums::tensor;
  static constexpr bool kLateMask = C.mask_path == MaskPath::staged_late;
  static constexpr int kSums = kTensorSums ? 4 : 0;  // o[kO] and o[kO + 2] hold the row sums
  using QK = ptx::Wgmma<C.block_k, P.dtype, false>;
  using PV = ptx::Wgmma<kDimV + 2 * kSums, P.dtype, true>;
  // Whether scores are computed from products here: then the softmax takes them as they are.
  static constexpr bool kScores = scored(P) || P.mask > MaskKind::boolean;
  // Whether that goes element by element, as the definition has it.
  static constexpr bool kByElement =
      scored(P) || P.mask_mod || (P.mask != MaskKind::none && !C.stages_mask());
  static constexpr bool kBlocks = P.block_mask_q != 0 && !kByElement;
  static constexpr bool kLimits = kByElement || kBlocks;  // in every tile
  static constexpr bool kPreparesQ = false;               // wgmma takes it as it comes
  static constexpr bool kMasked = P.mask != MaskKind::none;
  using Room = attune::Room<P.dtype, kFirstMax>;

  __device__ Consumer(const KernelArgs& args, const TensorMaps& m, const Problem& problem,
                      const Control& b, uint32_t smem, int warpgroup)
      : rows(args, problem, b, smem, warpgroup, unit_of(args)), maps(m) {}

  __device__ void run() {
    Walk<P, C, Consumer>::run(*this);
    if constexpr (kFirstMax) {
      hand_back_q();
      __syncwarp();  // every lane has written its records
      rows.release(rows.bars.first_passed);
      ptx::mbarrier_try_wait_parity(rows.bars.first_passed, 0);
    }
  }

  // How far it came.
  __device__ Place<C> place() const { return {rows.count, rows.k_ring, rows.v_ring, rows.q_ring}; }

  // Where Inf or NaN came in, perhaps by a key that is forbidden, or scores are vast.
  __device__ void repair() {
    if (C.tma() && rows.warp == 0 && rows.lane == 0) ptx::cp_async_bulk_wait_group();
    rows.repair();
  }

  __device__ bool next_rows() {
    return rows.next_rows([] {});
  }
  __device__ static float unit_of(const KernelArgs& args) {
    return kScores ? kLog2e : args.params.scale * kLog2e;
  }

  // ---- going from rows to rows ----

  // The Q buffer, once the O that went through it has left.
  __device__ void hand_back_q() {
    if (rows.owed != 0 && rows.warp == 0 && rows.lane == 0) {
      if (C.tma()) ptx::cp_async_bulk_wait_group_read();
      ptx::mbarrier_arrive(rows.owed);
    }
    rows.owed = 0;
  }

  __device__ void owe_q(uint32_t bar) {
    rows.owed = bar;
    if (C.q_buffers == 1) hand_back_q();
  }
  __device__ void end_q() {}  // O goes through its buffer

  __device__ void release_k() {
    if (C.stages_mask()) __syncwarp();  // every lane has read the mask beside it
    rows.release(rows.bars.k.empty[rows.k_ring]);
    rows.k_ring.next();
  }

  // ---- the products ----

  __device__ void issue_qk() {
    const uint64_t k = rows.k_matrix + uint32_t(rows.k_ring.at * (kLayout.k / 16));
#pragma unroll
    for (int step = 0; step < (P.dim + 15) / 16; ++step)
      QK::ss(s, rows.q_matrix + step / 4 * (panel_bytes(64) / 16) + step % 4 * 2,
             k + step / 4 * (panel_bytes(C.block_k) / 16) + step % 4 * 2, step > 0);
    ptx::wgmma_commit_group();
  }
  __device__ void issue_pv() {
    const uint64_t v = rows.v_matrix + uint32_t(rows.v_ring.at * (kLayout.v / 16));
#pragma unroll
    for (int step = 0; step < kP; ++step) PV::rs(o, w[step], v + step * (16 * 128 / 16), 1);
    ptx::wgmma_commit_group();
  }

  __device__ void end_pv() {
    ptx::pin(o);
    rows.release(rows.bars.v.empty[rows.v_ring]);
  }
  __device__ void next_v() { rows.v_ring.next(); }

  // ---- a tile of keys ----

  __device__ void first_tile(int j0) {
#pragma unroll
    for (int i = 0; i < kO + kSums; ++i) o[i] = 0;
    if (!kLateMask) load_mask();
    if (kByElement || !rows.is_inside(j0))
      score<true>(j0);
    else
      score<false>(j0);
    release_k();
    softmax<true, true, true>(j0, 0);
  }
  __device__ void read_beside_k() {
    if (!kLateMask) load_mask();
  }
  template <bool Limits>
  __device__ void make_scores(int j0) {
    if (!kLateMask) release_k();
    score<Limits>(j0);
    if (kLateMask) release_k();
  }
  template <bool Limits, bool Maxima>
  __device__ void weigh(int j0, uint32_t v_empty) {
    softmax<false, Limits || kMasked, Maxima>(j0, v_empty);
  }

  // ---- scores (scores.cuh) ----

  template <bool Limits>
  __device__ void score(int j0);
  __device__ void load_mask();

  // ---- softmax (softmax.cuh) ----

  template <bool First, bool Masked>
  __device__ bool new_maxima(float (&shift)[2]);
  template <int From, int To>
  __device__ void exponentials(const float (&shift)[2], float (&sum)[2][2]);
  template <int From, int To>
  __device__ void pack_weights(int j0, float (&sum)[2][2]);
  __device__ void rescale();
  template <bool First, bool Masked, bool Maxima, bool PvRuns = !First>
  __device__ void softmax(int j0, uint32_t v_empty);
  __device__ void watch_sums();

  // ---- the end of the rows (store.cuh) ----

  __device__ void write(uint32_t done_tile, uint32_t done_count, uint32_t at);

  Rows<P, C> rows;
  const TensorMaps& maps;

  float o[kO + kSums], s[kS], m[2], l[2], alpha[2];
  float reference[2];  // RowMaxima::first: what is added to a row's scores, in powers of two
  uint32_t w[kP][4];
  StagedMask<P, C> mask;
};

}  // namespace attune

#include "scores.cuh"
#include "softmax.cuh"
#include "store.cuh"
