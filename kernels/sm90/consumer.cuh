// A warpgroup with 64 query rows: it walks over their key tiles, from the last to the first, so
// that the diagonal comes first; scores, softmax, and the end of the rows.
#pragma once

#include "../ladder/naive.cuh"
#include "../ptx/hopper.h"
#include "../ptx/memory.h"
#include "../ptx/mma.h"
#include "../sm80/combine.cuh"
#include "schedule.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
class Consumer {
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr int kDimV = round_up(P.dim_v, 8);
  static constexpr int kS = C.block_k / 2, kO = kDimV / 2, kP = C.block_k / 16;
  static constexpr int kSums = C.tensor_sums ? 4 : 0;  // o[kO] and o[kO + 2] hold the row sums
  static constexpr int kTurn = 1, kStore = 5;          // named barriers, and one for each warpgroup
  using QK = ptx::Wgmma<C.block_k, P.dtype, false>;
  using PV = ptx::Wgmma<kDimV + 2 * kSums, P.dtype, true>;
  // Whether scores are computed from products here: then the softmax takes them as they are.
  static constexpr bool kScores = scored(P) || P.mask > MaskKind::boolean;
  // Whether that goes element by element, as the definition has it.
  static constexpr bool kByElement =
      scored(P) || P.block_mask_q != 0 || P.mask_mod || (P.mask != MaskKind::none && !C.stage_mask);
  static constexpr bool kMasked = P.mask != MaskKind::none;
  static constexpr MaskTile kMask = mask_tile(C, P);
  static constexpr int kBias = !C.stage_mask ? 1 : P.mask == MaskKind::f32 ? kS : kS / 2;

 public:
  __device__ Consumer(const KernelArgs& args, const TensorMaps& m, const Problem& problem,
                      const Barriers& b, uint32_t smem, int warpgroup)
      : x(args), maps(m), p(problem), bars(b), base(smem), wg(warpgroup), unit(unit_of(args)) {
    lane = int(threadIdx.x % 32);
    warp = int(threadIdx.x / 32 % 4);
    k_matrix = ptx::wgmma_matrix(base + kLayout.k_at, 16);
    v_matrix = ptx::wgmma_matrix(base + kLayout.v_at, panel_bytes(C.block_k));
  }

  __device__ void run() {
    if (C.turn != kNoTurn && wg == C.warpgroups - 1) pass_turn();
    bool more = next_rows();
    if (C.flat && more) first_qk();
    while (more) {
      if constexpr (!C.flat) first_qk();
      hand_back_q();
      walk();
      const uint32_t done = tile, done_count = count - 1, done_q = q;
      const uint32_t done_bar = bars.q_empty + 8 * q_ring.at;
      q_ring.next();
      if constexpr (C.flat) more = next_rows();
      ptx::mbarrier_wait(bars.v_full + 8 * v_ring.at, v_ring.phase);
      if (C.flat && more) {  // the next rows' first QK goes along
        ptx::wgmma_fence();
        issue_pv();
        ptx::wgmma_fence();
        issue_qk();
        ptx::wgmma_wait<1>();
        ptx::pin(o);
        release(bars.v_empty + 8 * v_ring.at);
        v_ring.next();
        write(done, done_count, done_q);
        ptx::wgmma_wait<0>();
        ptx::pin(s);
        pass_over_v();
      } else {
        ptx::wgmma_fence();
        issue_pv();
        ptx::wgmma_wait<0>();
        ptx::pin(o);
        release(bars.v_empty + 8 * v_ring.at);
        v_ring.next();
        write(done, done_count, done_q);
      }
      owed = done_bar;
      if constexpr (C.q_buffers == 1) hand_back_q();
      if constexpr (!C.flat) more = C.schedule != kGrid && next_rows();
    }
    repair();
  }

 private:
  __device__ static float unit_of(const KernelArgs& args) {
    return kScores ? kLog2e : args.params.scale * kLog2e;
  }

  // ---- going from rows to rows ----

  // Waits for the next rows' Q, passes over key tiles that none of this warpgroup's rows may look
  // at, and waits for the first K. False: there are no more rows.
  __device__ bool next_rows() {
    for (;; ++count) {
      if constexpr (C.schedule == kDynamic) {
        ptx::mbarrier_wait(bars.tile_full, tile_phase);
        tile = ptx::ld_shared_b32(bars.tile);
        __syncwarp();  // every lane has read it
        if (lane == 0) ptx::mbarrier_arrive(bars.tile_empty);
        tile_phase ^= 1;
      } else {
        tile = nth_tile<P, C>(p, x.params, count);
      }
      if (tile == kNoMoreTiles) return false;
      if (tile != kNoTile && enter(Work<P, C>(p, x.params, tile))) break;
      if constexpr (C.schedule == kGrid) return false;
    }
    ++count;
    q = base + q_ring.at * kLayout.q + wg * (kLayout.q / C.warpgroups);
    q_matrix = ptx::wgmma_matrix(q, 16);
    ptx::mbarrier_wait(bars.q_full + 8 * q_ring.at, q_ring.phase);
    for (int i = 0; i < skipped; ++i, --n) pass_over(bars.k_full, bars.k_empty, &k_ring);
    ptx::mbarrier_wait(bars.k_full + 8 * k_ring.at, k_ring.phase);
    return true;
  }

  // What of the rows is kept through the walk is no more than the walk needs; the rest is found out
  // anew at the end: a few cycles, against registers. False: past the end of a shorter sequence.
  __device__ bool enter(const Work<P, C>& work) {
    if (work.first >= work.rows) return false;
    tiles = Tiles<P, C>(p, work);
    n = tiles.end;
    row0 = work.first + wg * 64;
    keys = int(work.s.sk);
    diagonal = int(work.s.shift);
    const int last = min(row0 + 64, work.rows) - 1;
    const Span span = row0 <= last && keys > 0 ? span_of<P, C>(p, work, row0, last) : Span{};
    all_begin = span.all_begin;
    all_end = span.all_end;
    skipped = 0;
    if constexpr (C.skip && (P.causal || P.window())) {
      const int end = max((span.end + C.block_k - 1) / C.block_k, tiles.begin + 1);
      // No more than the ring holds: the producer waits for V to be given back before it goes on.
      skipped = min(max(tiles.end - end, 0), C.stages - int(C.flat));
    }
    return true;
  }

  __device__ void pass_over(uint32_t full, uint32_t empty, Ring<C.stages>* ring) {
    ptx::mbarrier_wait(full + 8 * ring->at, ring->phase);
    release(empty + 8 * ring->at);
    ring->next();
  }

  __device__ void pass_over_v() {
    for (int i = 0; i < skipped; ++i) {
      pass_over(bars.v_full, bars.v_empty, &v_ring);
      if constexpr (C.turn != kNoTurn) take_turn(), pass_turn();
    }
  }

  // The Q buffer, once the O that went through it has left.
  __device__ void hand_back_q() {
    if (owed != 0 && warp == 0 && lane == 0) {
      if constexpr (C.tma()) ptx::tma_store_wait_read();
      ptx::mbarrier_arrive(owed);
    }
    owed = 0;
  }

  // Of a tile of K or V: to all who bring a part of it.
  __device__ void release(uint32_t bar) {
    if constexpr (C.cluster == 1) {
      if (lane == 0) ptx::mbarrier_arrive(bar);
    } else {
      if (lane < C.cluster) ptx::mbarrier_arrive_at(bar, uint32_t(lane));
    }
  }
  __device__ void release_k() {
    if constexpr (C.stage_mask) __syncwarp();  // every lane has read the mask beside it
    release(bars.k_empty + 8 * k_ring.at);
    k_ring.next();
  }
  __device__ void take_turn() { ptx::barrier_sync(kTurn + wg, 256); }
  __device__ void pass_turn() {
    ptx::barrier_arrive(kTurn + (wg + 1 == C.warpgroups ? 0 : wg + 1), 256);
  }

  // ---- the products ----

  __device__ void issue_qk() {
    const uint64_t k = k_matrix + uint32_t(k_ring.at * (kLayout.k / 16));
#pragma unroll
    for (int step = 0; step < (P.dim + 15) / 16; ++step)
      QK::ss(s, q_matrix + step / 4 * (panel_bytes(64) / 16) + step % 4 * 2,
             k + step / 4 * (panel_bytes(C.block_k) / 16) + step % 4 * 2, step > 0);
    ptx::wgmma_commit();
  }
  __device__ void issue_pv() {
    const uint64_t v = v_matrix + uint32_t(v_ring.at * (kLayout.v / 16));
#pragma unroll
    for (int step = 0; step < kP; ++step) PV::rs(o, w[step], v + step * (16 * 128 / 16), 1);
    ptx::wgmma_commit();
  }

  __device__ void first_qk() {
    ptx::wgmma_fence();
    issue_qk();
    pass_over_v();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
  }

  // ---- the walk over a warpgroup's key tiles ----

  __device__ bool is_inside(int j0) const { return j0 >= all_begin && j0 + C.block_k <= all_end; }

  __device__ void walk() {
#pragma unroll
    for (int i = 0; i < kO + kSums; ++i) o[i] = 0;
    --n;
    load_bias(k_ring.at);
    if (kByElement || !is_inside(n * C.block_k))
      score<true>(n * C.block_k);
    else
      score<false>(n * C.block_k);
    release_k();
    softmax<true, true>(n * C.block_k, 0);
    // From the diagonal through what all rows may look at to the window's other side.
    if constexpr (!kByElement && (P.causal || P.window()))
      for (; n > tiles.begin && !is_inside((n - 1) * C.block_k); --n)
        step<true>((n - 1) * C.block_k);
#pragma unroll 1
    for (; n > tiles.begin && (kByElement || !P.window() || is_inside((n - 1) * C.block_k)); --n)
      step<kByElement>((n - 1) * C.block_k);
    if constexpr (!kByElement && P.window())
#pragma unroll 1
      for (; n > tiles.begin; --n) step<true>((n - 1) * C.block_k);
  }

  // Limits: whether some row may not look at some key.
  template <bool Limits>
  __device__ void step(int j0) {
    if constexpr (C.overlap) {
      ptx::mbarrier_wait(bars.k_full + 8 * k_ring.at, k_ring.phase);
      if constexpr (C.turn == kProductTurn) take_turn();
      ptx::wgmma_fence();
      issue_qk();
      ptx::mbarrier_wait(bars.v_full + 8 * v_ring.at, v_ring.phase);
      ptx::wgmma_fence();
      issue_pv();
      if constexpr (C.turn == kProductTurn) pass_turn();
      load_bias(k_ring.at);
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      release_k();
      score<Limits>(j0);
      if constexpr (C.turn == kExpTurn) take_turn();
      softmax<false, Limits || kMasked>(j0, bars.v_empty + 8 * v_ring.at);
      if constexpr (C.turn == kExpTurn) pass_turn();
    } else {
      if constexpr (C.turn == kProductTurn) take_turn();
      ptx::mbarrier_wait(bars.v_full + 8 * v_ring.at, v_ring.phase);
      ptx::wgmma_fence();
      issue_pv();
      ptx::mbarrier_wait(bars.k_full + 8 * k_ring.at, k_ring.phase);
      ptx::wgmma_fence();
      issue_qk();
      if constexpr (C.turn == kProductTurn) pass_turn();
      load_bias(k_ring.at);
      ptx::wgmma_wait<0>();
      ptx::pin(s);
      ptx::pin(o);
      release(bars.v_empty + 8 * v_ring.at);
      release_k();
      score<Limits>(j0);
      if constexpr (C.turn == kExpTurn) take_turn();
      softmax<false, Limits || kMasked>(j0, 0);
      if constexpr (C.turn == kExpTurn) pass_turn();
    }
    v_ring.next();
  }

  // ---- scores ----

  __device__ int row_at(int r) const { return row0 + warp * 16 + lane / 4 + 8 * r; }

  // Products into scores, forbidden keys to -inf.
  template <bool Limits>
  __device__ void score(int j0) {
    if constexpr (kByElement) {
      const Work<P, C> work(p, x.params, ptx::opaque(tile));
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
            const float added = C.stage_mask ? bias_at(i + e) : row.mask(x, j);
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
          s[i] = kScores ? fmaf(s[i], x.params.scale, bias_at(i)) : s[i] + bias_at(i);
      if constexpr (Limits) limit(j0);
    }
  }

  __device__ void limit(int j0) {
    const int at = j0 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int begin = 0, end = keys;
      if constexpr (P.window()) {
        const Row<P> row = Work<P, C>(p, x.params, ptx::opaque(tile)).row(p, row_at(r));
        begin = row.begin;
        end = min(end, row.end);
      } else if constexpr (P.causal) {
        end = min(end, row_at(r) + diagonal + 1);
      }
#pragma unroll
      for (int i = 2 * r; i < kS; i += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = at + i / 4 * 8 + e;
          if (j >= end || (P.window() && j < begin)) s[i + e] = -kInf;
        }
    }
  }

  // The mask's numbers beside the products, while these are computed: in pairs, but for fp32.
  __device__ void load_bias(int stage) {
    if constexpr (C.stage_mask) {
      const uint32_t tile_at =
          base + kLayout.m_at + stage * kLayout.m + wg * (kLayout.m / C.warpgroups);
      const bool one_row = x.params.mask.stride[2] == 0;
      if constexpr (element_bytes(P.mask) == 2 && kMask.pitch == 128) {
        const int row = one_row ? 0 : warp * 16 + lane % 16;
#pragma unroll
        for (int n8 = 0; n8 < C.block_k / 8; n8 += 2) {
          const int chunk = n8 + lane / 16;
          uint32_t v[4];
          ptx::ldmatrix_x4(
              v, tile_at + chunk / 8 * panel_bytes(64) + row * 128 + ((chunk % 8 ^ row % 8) << 4));
#pragma unroll
          for (int e = 0; e < 4; ++e) bias[2 * n8 + e] = v[e];
        }
      } else {
#pragma unroll
        for (int i = 0; i < kS; i += 2) {
          const int row = one_row ? 0 : warp * 16 + lane / 4 + 8 * (i >> 1 & 1);
          const int key = i / 4 * 8 + lane % 4 * 2;
          const int at = key / kMask.keys * 64 * kMask.pitch + row * kMask.pitch +
                         key % kMask.keys * element_bytes(P.mask);
          const uint32_t from = tile_at + (at ^ (at >> 7 & kMask.pitch / 16 - 1) << 4);
          if constexpr (P.mask == MaskKind::f32) {
            bias[i] = ptx::ld_shared_b32(from);
            bias[i + 1] = ptx::ld_shared_b32(from + 4);
          } else if constexpr (element_bytes(P.mask) == 2) {
            bias[i / 2] = ptx::ld_shared_b32(from);
          } else {
            bias[i / 2] = ptx::ld_shared_u16(from);
          }
        }
      }
    }
  }
  __device__ float bias_at(int i) const {
    if constexpr (P.mask == MaskKind::f32) return __uint_as_float(bias[i]);
    const uint32_t pair = bias[i / 2 % kBias];
    if constexpr (P.mask == MaskKind::boolean)
      return (i % 2 == 0 ? pair & 0xff : pair >> 8) != 0 ? 0.f : -kInf;
    else
      return to_float < P.mask == MaskKind::f16
                 ? DType::f16
                 : DType::bf16 > (uint16_t(i % 2 == 0 ? pair : pair >> 16));
  }

  // ---- softmax ----

  // The rows' maxima: `shift` becomes what is taken off, alpha by what sums and O shrink. Lazy: a
  // row keeps its maximum until the new one is 2^8 larger; the result says that some row did not.
  template <bool First, bool Masked>
  __device__ bool new_maxima(float (&shift)[2]) {
    float top[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r][0] = fmaxf(s[2 * r], s[2 * r + 1]);
      top[r][1] = fmaxf(s[2 * r + 4], s[2 * r + 5]);
    }
#pragma unroll
    for (int i = 8; i < kS; i += 4)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        top[r][i / 4 & 1] = fmaxf(fmaxf(top[r][i / 4 & 1], s[i + 2 * r]), s[i + 2 * r + 1]);
    bool grew = !First && !C.lazy;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float t = fmaxf(top[r][0], top[r][1]);
      t = fmaxf(t, __shfl_xor_sync(~0u, t, 1));
      t = fmaxf(t, __shfl_xor_sync(~0u, t, 2));
      if constexpr (!First) t = fmaxf(m[r], t);
      if constexpr (!First && C.lazy) {
        const bool much = !((t - m[r]) * unit <= 8.f);
        grew |= much;
        t = much ? t : m[r];
      }
      const float off = Masked && t == -kInf ? 0.f : t;
      shift[r] = -off * unit;
      alpha[r] = First ? 0.f : fmaf(m[r], unit, shift[r]);
      if constexpr (!First && !C.lazy) alpha[r] = ptx::ex2_approx(alpha[r]);
      m[r] = t;
    }
    return grew;
  }

  template <int From, int To>
  __device__ void exponentials(const float (&shift)[2], float (&sum)[2][2]) {
#pragma unroll
    for (int i = From; i < To; ++i) {
      const float t = fmaf(s[i], unit, shift[i >> 1 & 1]);
      const int e = (i >> 2) * 2 + (i & 1);
      s[i] = C.polynomial > 0 && e * C.polynomial % 16 < C.polynomial ? ex2_polynomial(t)
                                                                      : ptx::ex2_approx(t);
      if constexpr (!C.tensor_sums) sum[i >> 1 & 1][i & 1] += s[i];
    }
  }

  // 2^t by multiply-adds: the whole part goes to the exponent, a polynomial does the rest, to
  // 7.5e-5.
  __device__ static float ex2_polynomial(float t) {
    constexpr float kWhole = 12582912.f;  // 1.5 * 2^23: adding it rounds
    t = fmaxf(t, -126.f);
    const float whole = t + kWhole;
    const float f = t - (whole - kWhole);
    const float y = fmaf(fmaf(fmaf(0.05517167f, f, 0.24261112f), f, 0.69326099f), f, 0.99992807f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(whole) << 23));
  }

  template <int From, int To>
  __device__ void pack_weights(int j0) {
#pragma unroll
    for (int i = From; i < To; i += 2) {
      if constexpr (P.dropout) drop(s[i], s[i + 1], i >> 1 & 1, j0 + i / 4 * 8 + lane % 4 * 2);
      w[i / 8][i / 2 % 4] = pack<P.dtype>(s[i], s[i + 1]);
    }
  }

  __device__ void drop(float& w0, float& w1, int r, int j) const {
    const Work<P, C> work(p, x.params, tile);
    const int at = min(row_at(r), work.rows - 1);
    const Params& a = x.params;
    const Philox4 bits =
        dropout_bits(a.dropout_seed, a.dropout_offset, work.b, work.h, p.heads_q, at, j / 4);
    const uint32_t threshold = dropout_threshold(a.dropout_p);
    if (((j & 2) != 0 ? bits.word[2] : bits.word[0]) < threshold) w0 = 0;
    if (((j & 2) != 0 ? bits.word[3] : bits.word[1]) < threshold) w1 = 0;
  }

  __device__ void rescale() {
#pragma unroll
    for (int i = 0; i < kO + kSums; ++i) o[i] *= alpha[i >> 1 & 1];
  }

  // Weights of the tile, in w; PV of the tile before ends on the way, and its V is given back.
  template <bool First, bool Masked>
  __device__ void softmax(int j0, uint32_t v_empty) {
    constexpr int kCut = First || !C.overlap ? 0 : kS * C.early_exps / 8 / 8 * 8;
    float shift[2], sum[2][2] = {};
    const bool grew = new_maxima<First, Masked>(shift);
    exponentials<0, kCut>(shift, sum);
    if constexpr (!First && C.overlap) {
      ptx::wgmma_wait<0>();
      ptx::pin(o);
      release(v_empty);
    }
    pack_weights<0, kCut>(j0);
    if constexpr (!First && !C.lazy) rescale();
    exponentials<kCut, kS>(shift, sum);
    pack_weights<kCut, kS>(j0);
    if constexpr (!First && C.lazy) {
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
    for (int r = 0; r < 2; ++r)
      l[r] = (First ? 0.f : C.lazy ? l[r] : l[r] * alpha[r]) + (sum[r][0] + sum[r][1]);
  }

  // ---- the end of the rows ----

  // O, normalised, through the Q buffer to where it belongs, and LSE.
  __device__ void write(uint32_t done_tile, uint32_t done_count, uint32_t at) {
    const Work<P, C> done(p, x.params, ptx::opaque(done_tile));
    const int first = done.first + wg * 64;
    float factor[2];
    bool finite = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (C.tensor_sums) {
        l[r] = o[kO + 2 * r];
      } else {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
      }
      const int i = first + warp * 16 + lane / 4 + 8 * r;
      const Row<P> row = done.row(p, min(i, done.rows - 1));
      const Finish f = finish_row<P>(x, row, m[r] == -kInf ? -kInf : m[r] * unit, l[r]);
      factor[r] = f.factor;
      if (lane % 4 == 0 && i < done.rows) write_lse<P>(x, done.s, row, f);
      // Beyond 2^24 a score times the unit may be rounded by so much that weights overflow, or that
      // the largest, which should be 1 at least, vanishes.
      finite &= i >= done.rows || m[r] == -kInf || (l[r] > .5f && l[r] < kInf);
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
      for (int e = 0; e < 4; ++e) zeros = ptx::fma2<P.dtype>(v[e], 0, zeros);
      const int chunk = n8 + lane / 16;
      ptx::stmatrix_x4(at + chunk / 8 * panel_bytes(64) + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                       v);
    }
    // Opaque, because the compiler mixes it up with the count of tiles to come.
    if (!finite || (zeros & 0x7fff7fff) != 0)
      ptx::st_shared_b32(bars.note(ptx::opaque(done_count), wg), done_tile + 1);
    if constexpr (C.tma()) ptx::fence_async();
    ptx::barrier_sync(kStore + wg, 128);
    store(done, at, first);
  }

  // 16, 8, 4 or 2 bytes of shared memory.
  template <int Bytes>
  __device__ static auto shared_bytes(uint32_t from) {
    if constexpr (Bytes == 16)
      return ptx::ld_shared_v4(from);
    else if constexpr (Bytes == 8)
      return make_uint2(ptx::ld_shared_b32(from), ptx::ld_shared_b32(from + 4));
    else if constexpr (Bytes == 4)
      return ptx::ld_shared_b32(from);
    else
      return uint16_t(ptx::ld_shared_u16(from));
  }

  __device__ void store(const Work<P, C>& done, uint32_t at, int first) {
    if (first >= done.rows) return;
    // By hand what TMA cannot reach, and where the next sequence's rows are not ours to write.
    if (!C.tma() || (P.ragged && first + 64 > done.rows)) {
      constexpr int kStep = C.tma() ? 16 : C.copy, kSteps = (P.dim_v * 2 + kStep - 1) / kStep;
      for (int n = int(threadIdx.x % 128); n < 64 * kSteps; n += 128) {
        const int row = n / kSteps, step = n % kSteps, chunk = step / (16 / kStep);
        if (first + row >= done.rows) break;
        uint16_t* to = const_cast<uint16_t*>(
            row_of<P.dtype>(x.params.out, done.b, done.h, done.s.q0 + first + row));
        using Bytes = decltype(shared_bytes<kStep>(0));
        *reinterpret_cast<Bytes*>(to + step * (kStep / 2)) =
            shared_bytes<kStep>(at + chunk / 8 * panel_bytes(64) + row * 128 +
                                ((chunk % 8 ^ row % 8) << 4) + step % (16 / kStep) * kStep);
      }
      ptx::barrier_sync(kStore + wg, 128);  // read, before the buffer is given back
      return;
    }
    if (warp == 0 && lane == 0) {
#pragma unroll
      for (int d = 0; d < panels_of(P.dim_v); ++d)
        ptx::tma_store(&maps.out, at + d * panel_bytes(64), d * kPanel, int(done.s.q0) + first,
                       done.h, P.ragged ? 0 : done.b);
      ptx::tma_store_commit();
    }
  }

  // Where Inf or NaN came in, perhaps by a key that is forbidden, or scores are vast, the rows are
  // computed again as the definition has it, which reads only what they may look at. At the end,
  // because code that lets lanes of a warp part, inside the loop, costs a tenth of its speed.
  __device__ void repair() {
    if (C.tma() && warp == 0 && lane == 0) ptx::tma_store_wait();
    ptx::barrier_sync(kStore + wg, 128);
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t note = ptx::ld_shared_b32(bars.note(i, wg));
      if (note == 0) continue;
      const Work<P, C> work(p, x.params, note - 1);
      const int first = work.first + wg * 64;
#pragma unroll 1
      for (int r = warp; r < 64 && first + r < work.rows; r += 4)
        naive_row<P>(x, p, work.s, work.b, work.h, first + r);
    }
  }

  const KernelArgs& x;
  const TensorMaps& maps;
  const Problem& p;
  const Barriers& bars;
  const uint32_t base;
  const int wg;
  const float unit;  // scores to powers of two
  int lane, warp;
  uint64_t q_matrix, k_matrix, v_matrix;
  uint32_t q = 0;     // this warpgroup's part of the Q buffer
  uint32_t owed = 0;  // the barrier of a Q buffer that O is still leaving

  uint32_t tile = 0, tile_phase = 0;
  uint32_t count = 0;  // of tiles so far
  Tiles<P, C> tiles;
  int n = 0;        // tiles from here down are yet to come
  int skipped = 0;  // tiles that none of the rows may look at
  int row0 = 0, keys = 0,
      diagonal = 0;                // first row; keys of the sequence; row i stands at i + diagonal
  int all_begin = 0, all_end = 0;  // every row may look at these
  Ring<C.stages> k_ring, v_ring;
  Ring<C.q_buffers> q_ring;

  float o[kO + kSums], s[kS], m[2], l[2], alpha[2];
  uint32_t w[kP][4];
  uint32_t bias[kBias];
};

}  // namespace attune
