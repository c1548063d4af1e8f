// A warpgroup with 64 query rows of fp16 or bf16: it walks over their key tiles, from the last to
// the first, so that the diagonal comes first; scores, softmax, and the end of the rows.
#pragma once

#include "../ptx/matrix.h"
#include "rows.cuh"
#include "staged_mask.cuh"
#include "store.cuh"
#include "weights.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
class Consumer : protected Rows<P, C> {
  using Base = Rows<P, C>;

 protected:
  using Base::bars, Base::base, Base::count, Base::k_matrix, Base::k_ring, Base::lane, Base::n,
      Base::owed, Base::p, Base::q, Base::q_matrix, Base::q_ring, Base::rest, Base::tile,
      Base::tiles, Base::unit, Base::v_matrix, Base::v_ring, Base::warp, Base::wg, Base::x;
  using Base::begin, Base::end_v, Base::is_inside, Base::kFirstMax, Base::kLayout, Base::next_tile,
      Base::pass_over_v, Base::pass_turn, Base::release, Base::row_at, Base::take_turn;
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
  static constexpr bool kMasked = P.mask != MaskKind::none;
  using Room = attune::Room<P.dtype, kFirstMax>;

 public:
  __device__ Consumer(const KernelArgs& args, const TensorMaps& m, const Problem& problem,
                      const Control& b, uint32_t smem, int warpgroup)
      : Base(args, problem, b, smem, warpgroup, unit_of(args)), maps(m) {}

  __device__ void run() {
    if (C.turn != kNoTurn && wg == C.warpgroups - 1) pass_turn();
    bool more = next_rows();
    if (C.flat && more) first_qk();
    while (more) {
      if constexpr (!C.flat) first_qk();
      hand_back_q();
      walk();
      const uint32_t done = tile, done_count = count - 1, done_q = q;
      const int passed = rest;
      const uint32_t done_bar = bars.q.empty[q_ring];
      q_ring.next();
      if constexpr (C.flat) more = next_rows();
      bars.v.wait_full(v_ring);
      if (C.flat && more) {  // the next rows' first QK goes along
        ptx::wgmma_fence();
        issue_pv();
        ptx::wgmma_fence();
        issue_qk();
        ptx::wgmma_wait_group<1>();
        ptx::pin(o);
        release(bars.v.empty[v_ring]);
        end_v(passed);
        write(done, done_count, done_q);
        ptx::wgmma_wait_group<0>();
        ptx::pin(s);
        pass_over_v();
      } else {
        last_pv();
        write(done, done_count, done_q);
      }
      owed = done_bar;
      if constexpr (C.q_buffers == 1) hand_back_q();
      if constexpr (!C.flat) more = C.schedule != kGrid && next_rows();
    }
    if constexpr (kFirstMax) {
      hand_back_q();
      __syncwarp();  // every lane has written its records
      release(bars.first_passed);
      ptx::mbarrier_try_wait_parity(bars.first_passed, 0);
    }
  }

  // How far it came.
  __device__ Place<C> place() const { return {count, k_ring, v_ring, q_ring}; }

  // Where Inf or NaN came in, perhaps by a key that is forbidden, or scores are vast.
  __device__ void repair() {
    if (C.tma() && warp == 0 && lane == 0) ptx::cp_async_bulk_wait_group();
    Base::repair();
  }

 protected:
  __device__ bool next_rows() {
    return Base::next_rows([] {});
  }
  __device__ static float unit_of(const KernelArgs& args) {
    return kScores ? kLog2e : args.params.scale * kLog2e;
  }

  // ---- going from rows to rows ----

  // The Q buffer, once the O that went through it has left.
  __device__ void hand_back_q() {
    if (owed != 0 && warp == 0 && lane == 0) {
      if constexpr (C.tma()) ptx::cp_async_bulk_wait_group_read();
      ptx::mbarrier_arrive(owed);
    }
    owed = 0;
  }

  __device__ void release_k() {
    if constexpr (C.stages_mask()) __syncwarp();  // every lane has read the mask beside it
    release(bars.k.empty[k_ring]);
    k_ring.next();
  }

  // ---- the products ----

  __device__ void issue_qk() {
    const uint64_t k = k_matrix + uint32_t(k_ring.at * (kLayout.k / 16));
#pragma unroll
    for (int step = 0; step < (P.dim + 15) / 16; ++step)
      QK::ss(s, q_matrix + step / 4 * (panel_bytes(64) / 16) + step % 4 * 2,
             k + step / 4 * (panel_bytes(C.block_k) / 16) + step % 4 * 2, step > 0);
    ptx::wgmma_commit_group();
  }
  __device__ void issue_pv() {
    const uint64_t v = v_matrix + uint32_t(v_ring.at * (kLayout.v / 16));
#pragma unroll
    for (int step = 0; step < kP; ++step) PV::rs(o, w[step], v + step * (16 * 128 / 16), 1);
    ptx::wgmma_commit_group();
  }

  __device__ void last_pv() {
    ptx::wgmma_fence();
    issue_pv();
    ptx::wgmma_wait_group<0>();
    ptx::pin(o);
    release(bars.v.empty[v_ring]);
    end_v(rest);
  }

  __device__ void first_qk() {
    ptx::wgmma_fence();
    issue_qk();
    pass_over_v();
    ptx::wgmma_wait_group<0>();
    ptx::pin(s);
  }

  // ---- the walk over a warpgroup's key tiles ----

  __device__ void walk() {
#pragma unroll
    for (int i = 0; i < kO + kSums; ++i) o[i] = 0;
    const int j0 = (n - 1) * C.block_k;
    if constexpr (!kLateMask) load_mask();
    if (kByElement || !is_inside(j0))
      score<true>(j0);
    else
      score<false>(j0);
    release_k();
    softmax<true, true, true>(j0, 0);
    next_tile();
    // From the diagonal through what all rows may look at to the window's other side.
    constexpr bool kLimits = kByElement || kBlocks;  // in every tile
    if constexpr (!kLimits && (P.causal || P.window()))
      for (; n > begin() && !is_inside((n - 1) * C.block_k); --n)
        step<true, true>((n - 1) * C.block_k);
#pragma unroll 1
    for (; n > begin() && (kLimits || !P.window() || is_inside((n - 1) * C.block_k)); next_tile())
      step<kLimits, !kFirstMax>((n - 1) * C.block_k);
    if constexpr (!kLimits && P.window())
#pragma unroll 1
      for (; n > begin(); --n) step<true, !kFirstMax>((n - 1) * C.block_k);
    Base::pass_over_rest();
  }

  // Limits: whether some row may not look at some key. Maxima: whether the rows' may grow.
  template <bool Limits, bool Maxima>
  __device__ void step(int j0) {
    const uint32_t v_empty = bars.v.empty[v_ring];
    bars.k.wait_full(k_ring);
    if constexpr (C.turn == kProductTurn) take_turn();
    ptx::wgmma_fence();
    issue_qk();
    bars.v.wait_full(v_ring);
    ptx::wgmma_fence();
    issue_pv();
    if constexpr (C.turn == kProductTurn) pass_turn();
    if constexpr (!kLateMask) load_mask();
    ptx::wgmma_wait_group<1>();
    ptx::pin(s);
    if constexpr (!kLateMask) release_k();
    score<Limits>(j0);
    if constexpr (kLateMask) release_k();
    if constexpr (C.turn == kExpTurn) take_turn();
    softmax<false, Limits || kMasked, Maxima>(j0, v_empty);
    if constexpr (C.turn == kExpTurn) pass_turn();
    v_ring.next();
  }

  // ---- scores ----

  // Products into scores, forbidden keys to -inf.
  template <bool Limits>
  __device__ void score(int j0) {
    if constexpr (kLateMask) load_mask();
    if constexpr (kByElement) {
      const Work<P, C> work(p, x, ptx::opaque(tile));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Row<P> row = work.row(p, min(row_at(r), work.rows - 1));
#pragma unroll
        for (int i = 2 * r; i < kS; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = j0 + i / 4 * 8 + lane % 4 * 2 + e;
            float& t = s[i + e];
            if (!row.in_range(j)) {
              t = -kInf;
              continue;
            }
            const float added = C.stages_mask() ? mask.at(i + e) : row.mask(x, j);
            if constexpr (kScores)
              t = row.template score<false>(x, t, j, added);
            else
              t = row.passes(x, j) ? t + added : -kInf;
          }
      }
    } else {
      if constexpr (kMasked)
#pragma unroll
        for (int i = 0; i < kS; ++i)
          s[i] = kScores ? fmaf(s[i], x.params.scale, mask.at(i)) : s[i] + mask.at(i);
      if constexpr (kBlocks)
        Base::block(s, j0);
      else if constexpr (Limits)
        Base::limit(s, j0);
    }
  }

  __device__ void load_mask() { mask.load(x, base, k_ring.at, wg, warp, lane); }

  // ---- softmax ----

  // The rows' maxima: `shift` becomes what is taken off, alpha by what sums and O shrink. Lazy: a
  // row keeps its maximum until the new one is 2^8 larger; the result says that some row did not.
  template <bool First, bool Masked>
  __device__ bool new_maxima(float (&shift)[2]) {
    float top[2][2];
    row_maxima(s, top);
    bool grew = !First && !C.keeps_maxima();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float t = fmaxf(top[r][0], top[r][1]);
      t = fmaxf(t, __shfl_xor_sync(~0u, t, 1));
      t = fmaxf(t, __shfl_xor_sync(~0u, t, 2));
      if constexpr (!First) t = fmaxf(m[r], t);
      if constexpr (!First && C.keeps_maxima()) {
        const bool much = !((t - m[r]) * unit <= 8.f);
        grew |= much;
        t = much ? t : m[r];
      }
      const float off = Masked && t == -kInf ? 0.f : t;
      shift[r] = -off * unit;
      // Of what was taken off and what is now: 0 where nothing grew, not the rounding of m * unit,
      // by which each tile would shrink sum and O.
      alpha[r] = First ? 0.f : __fadd_rn(__fmul_rn(m[r], unit), shift[r]);
      if constexpr (!First && !C.keeps_maxima()) alpha[r] = ptx::ex2_approx(alpha[r]);
      m[r] = t;
    }
    return grew;
  }

  template <int From, int To>
  __device__ void exponentials(const float (&shift)[2], float (&sum)[2][2]) {
#pragma unroll
    for (int i = From; i < To; ++i) {
      const float t = fmaf(s[i], unit, shift[i >> 1 & 1]);
      s[i] = ptx::ex2_approx(t);
      if constexpr (C.sums == RowSums::fp32) sum[i >> 1 & 1][i & 1] += s[i];
    }
  }

  template <int From, int To>
  __device__ void pack_weights(int j0, float (&sum)[2][2]) {
#pragma unroll
    for (int i = From; i < To; i += 2) {
      if constexpr (P.dropout)
        Base::drop(s[i], s[i + 1], i >> 1 & 1, j0 + i / 4 * 8 + lane % 4 * 2);
      const uint32_t pair = pack<P.dtype>(s[i], s[i + 1]);
      // A weight that is alone in its row is no longer exactly 1 where maxima are not the newest:
      // then its rounding stands above and below the fraction.
      if constexpr (C.sums == RowSums::rounded) {
        sum[i >> 1 & 1][0] += to_float<P.dtype>(uint16_t(pair));
        sum[i >> 1 & 1][1] += to_float<P.dtype>(uint16_t(pair >> 16));
      }
      w[i / 8][i / 2 % 4] = pair;
    }
  }

  __device__ void rescale() {
#pragma unroll
    for (int i = 0; i < kO + kSums; ++i) o[i] *= alpha[i >> 1 & 1];
  }

  // Weights of the tile, in w; PV of the tile before ends on the way, and its V is given back.
  template <bool First, bool Masked, bool Maxima, bool PvRuns = !First>
  __device__ void softmax(int j0, uint32_t v_empty) {
    constexpr int kCut = !PvRuns ? 0 : kS * C.early_exps / 8 / 8 * 8;
    float shift[2], sum[2][2] = {};
    bool grew = false;
    if constexpr (Maxima) {
      grew = new_maxima<First, Masked>(shift);
      if constexpr (kFirstMax)
#pragma unroll
        for (int r = 0; r < 2; ++r) reference[r] = shift[r] -= Room::kBelow;
    } else {
      shift[0] = reference[0], shift[1] = reference[1];
    }
    exponentials<0, kCut>(shift, sum);
    if constexpr (PvRuns) {
      ptx::wgmma_wait_group<0>();
      ptx::pin(o);
      release(v_empty);
    }
    pack_weights<0, kCut>(j0, sum);
    if constexpr (!First && !C.keeps_maxima()) rescale();
    exponentials<kCut, kS>(shift, sum);
    pack_weights<kCut, kS>(j0, sum);
    if constexpr (!Maxima) {
      watch_sums();
    } else if constexpr (!First && C.keeps_maxima()) {
      if (__any_sync(~0u, grew)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          alpha[r] = ptx::ex2_approx(alpha[r]);
          l[r] *= alpha[r];
        }
        rescale();
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] = (First ? 0.f : C.keeps_maxima() ? l[r] : l[r] * alpha[r]) + (sum[r][0] + sum[r][1]);
      if constexpr (kFirstMax && Maxima) alpha[r] = 1;
    }
  }

  // Without new maxima a weight may be far above 1: bf16 and the fp32 sums have room up to 2^127,
  // fp16 up to 2^16. Past kGrown the next tile's weights are made smaller, and, with the tile after
  // that, what was summed up before. A tile that goes from below kGrown past all room leaves an
  // infinite sum, and its rows are computed again.
  __device__ void watch_sums() {
    bool grew = false;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      grew |= alpha[r] != 1 || (kTensorSums ? o[kO + 2 * r] : l[r]) > Room::kGrown;
    if (__any_sync(~0u, grew)) {
      rescale();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        l[r] *= alpha[r];
        const float all = kTensorSums ? o[kO + 2 * r] : row_sum(l[r]);
        alpha[r] = all > Room::kGrown ? Room::kShrink : 1;
        if (all > Room::kGrown) reference[r] -= Room::kStep;
      }
    }
  }

  // ---- the end of the rows ----

  // O, normalised, through the Q buffer to where it belongs, and LSE.
  __device__ void write(uint32_t done_tile, uint32_t done_count, uint32_t at) {
    const Work<P, C> done(p, x, ptx::opaque(done_tile));
    const int first = done.first + wg * 64;
    float factor[2];
    bool finite = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] = kTensorSums ? o[kO + 2 * r] : row_sum(l[r]);
      const int i = first + warp * 16 + lane / 4 + 8 * r;
      const Row<P> row = done.row(p, min(i, done.rows - 1));
      float top = m[r] * unit;
      if constexpr (kFirstMax) top = alpha[r] == 1 ? -reference[r] : -Room::kStep - reference[r];
      const Finish f = finish_row<P>(x, row, m[r] == -kInf ? -kInf : top, l[r]);
      factor[r] = f.factor;
      if (lane % 4 == 0 && i < done.rows) write_lse<P>(x, done.s, row, f);
      // Beyond 2^24 a score times the unit may be rounded by so much that weights overflow, or that
      // the largest, which should be 1 at least, vanishes.
      finite &= i >= done.rows || m[r] == -kInf || (l[r] > Room::kLeast && l[r] < kInf);
    }
    uint32_t zeros = 0;  // or a NaN
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int n8 = 0; n8 < kDimV / 8; n8 += 2) {
      uint32_t v[4] = {};
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (4 * n8 + 2 * e < kO)
          v[e] = pack<P.dtype>(o[4 * n8 + 2 * e] * factor[e & 1],
                               o[4 * n8 + 2 * e + 1] * factor[e & 1]);
#pragma unroll
      for (int e = 0; e < 4; ++e) zeros = fma2<P.dtype>(v[e], 0, zeros);
      const int chunk = n8 + lane / 16;
      ptx::stmatrix_x4(at + chunk / 8 * panel_bytes(64) + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                       v);
    }
    if (!finite || (zeros & 0x7fff7fff) != 0) Base::record(done_tile, done_count);
    if constexpr (C.tma()) ptx::fence_proxy_async_shared();
    ptx::bar_sync(kStoreBarrier + wg, 128);
    store_rows<P, C>(x, maps, done, at, first, kStoreBarrier + wg, warp == 0 && lane == 0);
  }

  const TensorMaps& maps;

  float o[kO + kSums], s[kS], m[2], l[2], alpha[2];
  float reference[2];  // RowMaxima::first: what is added to a row's scores, in powers of two
  uint32_t w[kP][4];
  StagedMask<P, C> mask;
};

}  // namespace attune
