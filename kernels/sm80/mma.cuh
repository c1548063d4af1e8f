// Attention on tensor cores by mma.sync, fp16 and bf16 (8.0 and up).
//
// A block takes block_q query rows and walks over the keys, tile by tile. Each warp owns warp_rows
// of the rows: S = Q K^T, the online softmax and O += P V happen in its registers, and P goes from
// the first product's accumulators into the second's operand without leaving them.
#pragma once

#include "block.cuh"

namespace attune {

template <Problem P, MmaConfig C>
class Mma : public MmaBlock<P, C, Mma<P, C>> {
  using Base = MmaBlock<P, C, Mma>;
  friend Base;
  using Base::base, Base::c, Base::l, Base::lane, Base::m, Base::o, Base::p, Base::warp,
      Base::warp_k, Base::warp_q, Base::work, Base::x;
  using Base::kFilters, Base::kKeys, Base::kKSteps, Base::kMT, Base::kNT, Base::kOT, Base::kScores,
      Base::kThreads;
  using typename Base::Plan;
  template <int N>
  using Scores = typename Base::template Scores<N>;
  using SwizzleK = Swizzle<Plan::kDim / 8>;
  using SwizzleV = Swizzle<Plan::kDimV / 8>;
  // The running maximum stays as it is while it grows by less than 2^8: 16-bit weights have room.
  static constexpr float kLazy = 8;
  static constexpr int kAhead = 2;
  // Some key of the sequence may be forbidden to some row: NaN could leak from it, through V or a
  // mask.
  static constexpr bool kLeaks = kFilters || P.causal || P.window();
  static constexpr bool kExactTop = false;

 public:
  __device__ Mma(const KernelArgs& args, const Problem& problem, const Work<P, C>& w, uint8_t* smem)
      : Base(args, problem, w, smem) {}

 private:
  __device__ void settle() {}

  static constexpr float kBias = 0;  // weights are at most 1, and 2^8 until the next rescaling

  // ---- Loads ----

  // opaque: addresses are computed where they are used; kept in registers through the loop they
  // would crowd out the accumulators.
  __device__ void load_q() {
    const int thread = int(ptx::opaque(threadIdx.x));
    const int first = int(ptx::opaque(uint32_t(work.first)));
    const int valid = work.rows - first;
    if constexpr (C.pack_gqa)
      load_rows<C.block_q(), P.dim, Plan::kDim, kThreads, C.vector>(
          base, thread, valid, [&](int r) {
            r += first;
            return row_of<P.dtype>(x.params.q, work.b, work.head(r), work.s.q0 + work.query(r));
          });
    else
      load_rows<C.block_q(), P.dim, Plan::kDim, kThreads, C.vector>(
          base, thread, valid, row_of<P.dtype>(x.params.q, work.b, work.h, work.s.q0 + first),
          x.params.q.stride_s);
  }

  __device__ void load_tile(int tile, uint32_t stage) {
    const int j0 = tile * C.block_k;
    const int valid = int(work.s.sk) - j0;
    const int thread = int(ptx::opaque(threadIdx.x));
    const int b = int(ptx::opaque(uint32_t(work.b))), hk = int(ptx::opaque(uint32_t(work.hk)));
    const uint16_t* k = row_of<P.dtype>(x.params.k, b, hk, work.s.k0 + j0);
    const uint16_t* v = row_of<P.dtype>(x.params.v, b, hk, work.s.k0 + j0);
    load_rows<C.block_k, P.dim, Plan::kDim, kThreads, C.vector>(stage, thread, valid, k,
                                                                x.params.k.stride_s);
    load_rows<C.block_k, P.dim_v, Plan::kDimV, kThreads, C.vector>(stage + Plan::kK, thread, valid,
                                                                   v, x.params.v.stride_s);
    if constexpr (C.stage_mask) Base::load_mask(j0, stage + Plan::kMaskAt);
  }

  // The barrier: the tile is there for all, and nobody reads the one before it any more. With care,
  // what is not finite in V is taken out first, by whoever brought it, and reaches the rows that
  // may look at it by itself.
  __device__ void arrive(int tile, uint32_t stage) {
    if (kLeaks && Base::careful) {
      constexpr int kChunks = C.block_k * Plan::kDimV / 8;
      for (int at = threadIdx.x; at < kChunks; at += kThreads) {
        uint4 v = ptx::ld_shared_v4(chunk_of_v(stage, at));
        v.x = without_nonfinite<P.dtype>(v.x);
        v.y = without_nonfinite<P.dtype>(v.y);
        v.z = without_nonfinite<P.dtype>(v.z);
        v.w = without_nonfinite<P.dtype>(v.w);
        ptx::st_shared_v4(chunk_of_v(stage, at), v);
      }
      Base::add_nonfinite(tile * C.block_k + warp_k * kKeys);
    }
    __syncthreads();
  }

  __device__ static uint32_t chunk_of_v(uint32_t stage, int at) {
    constexpr int kChunks = Plan::kDimV / 8;
    return stage + Plan::kK + SwizzleV::offset(at / kChunks, at % kChunks);
  }

  // ---- One tile: S = Q K^T, softmax, O += P V ----

  __device__ void q_fragment(uint32_t (&a)[4], uint32_t first, int mt, int step) const {
    const int row = warp_q * C.warp_rows + lane % 16;
    ptx::ldmatrix_x4(a, SwizzleK::step(first, row, lane / 16, step) + mt * 16 * Plan::kDim * 2);
  }

  // The lane's place in the first fragment of Q.
  __device__ uint32_t first_of_q() const {
    return base + SwizzleK::offset(warp_q * C.warp_rows + lane % 16, lane / 16);
  }

  __device__ void take_q() {
    if constexpr (C.q_registers)
#pragma unroll
      for (int step = 0; step < kKSteps; ++step)
#pragma unroll
        for (int mt = 0; mt < kMT; ++mt) q_fragment(q[step][mt], first_of_q(), mt, step);
  }

  // A tile that lies on the diagonal, or at another end of the keys, is taken in parts, and those
  // that no row of the warp may look at are left out.
  __device__ void compute(int j0, uint32_t stage) {
    if (j0 >= warp.all_begin && j0 + kKeys <= warp.all_end) {
      attend<kNT, true>(j0, 0, stage);
      return;
    }
    constexpr int kPart = kNT % 4 == 0 ? 4 : 2;
#pragma unroll 1
    for (int key = 0; key < kKeys; key += kPart * 8)
      if (j0 + key < warp.end && j0 + key + kPart * 8 > warp.begin)
        attend<kPart, false>(j0 + key, key, stage);
  }

  // N n8 tiles of keys from `key` on: S = Q K^T, softmax, O += P V.
  template <int N, bool Inside>
  __device__ void attend(int j0, int key, uint32_t stage) {
    Scores<N> s = {};
    if constexpr (Base::kMaskFirst)
      Base::template begin_with_mask<Inside, N>(s, j0, stage + Plan::kMaskAt, key);
    products_qk<N>(s, stage, key);
    constexpr bool kFiltered = kFilters && (!Base::kMaskFirst || P.block_mask_q != 0 || P.mask_mod);
    if (!Inside || kFiltered || kScores)
      Base::template score<Inside, N>(s, j0, stage + Plan::kMaskAt, key);
    if (P.mask != MaskKind::none && Base::careful) Base::template forbid<N>(s, j0);
    Base::template rescale<N>(s, kLazy);
    weigh_and_add<N>(s, j0, stage, key);
  }

  // Fragments are fetched kAhead uses before they are needed: a load takes as long as several
  // products.
  template <int N>
  __device__ void products_qk(Scores<N>& s, uint32_t stage, int key0) {
    constexpr int kPairs = N / 2, kUses = kKSteps * kPairs;
    const int key = warp_k * kKeys + key0 + lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    const uint32_t first_q = ptx::opaque(first_of_q());
    const uint32_t first_k = stage + SwizzleK::offset(key, half);
    uint32_t a[2][kMT][4], b[kAhead + 1][4];
    const auto fetch_a = [&](int step) {
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt) {
        if constexpr (C.q_registers)
#pragma unroll
          for (int e = 0; e < 4; ++e) a[step % 2][mt][e] = q[step][mt][e];
        else
          q_fragment(a[step % 2][mt], first_q, mt, step);
      }
    };
    const auto fetch_b = [&](int use) {
      ptx::ldmatrix_x4(b[use % (kAhead + 1)], SwizzleK::step(first_k, key, half, use / kPairs) +
                                                  use % kPairs * 16 * Plan::kDim * 2);
    };
    fetch_a(0);
#pragma unroll
    for (int use = 0; use < kAhead && use < kUses; ++use) fetch_b(use);
#pragma unroll
    for (int use = 0; use < kUses; ++use) {
      const int step = use / kPairs, n = use % kPairs * 2;
      if (use + kAhead < kUses) fetch_b(use + kAhead);
      if (n == 0 && step + 1 < kKSteps) fetch_a(step + 1);
      const uint32_t(&k)[4] = b[use % (kAhead + 1)];
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt) {
        mma<P.dtype>(s[mt][n], a[step % 2][mt], k[0], k[1]);
        mma<P.dtype>(s[mt][n + 1], a[step % 2][mt], k[2], k[3]);
      }
    }
  }

  // P = 2^((S - max) c), 16 keys a step, and O += P V: the next step's exponentials follow this
  // one's products, which are still under way, so that both units work.
  template <int N>
  __device__ void weigh_and_add(Scores<N>& s, int j0, uint32_t stage, int key0) {
    float shift[kMT][2];
    Base::template shifts_of<N>(shift, s);
    constexpr int kPairs = kOT / 2, kSteps = N / 2, kUses = kSteps * kPairs;
    const int key = warp_k * kKeys + key0 + lane % 16;
    const uint32_t first_v = stage + Plan::kK + SwizzleV::offset(key, lane / 16);
    uint32_t a[2][kMT][4], b[kAhead + 1][4];
    const auto fetch_b = [&](int use) {
      ptx::ldmatrix_x4_trans(b[use % (kAhead + 1)],
                             SwizzleV::step(first_v, key, lane / 16, use % kPairs) +
                                 use / kPairs * 16 * Plan::kDimV * 2);
    };
    // Two weights: part n of the kMT * 4 registers that are one step's operand.
    const auto weigh = [&](int step, int n) {
      const int mt = n / 4, at = 2 * step + n / 2 % 2, r = n % 2;
      float w0 = ptx::ex2_approx(fmaf(s[mt][at][2 * r], c, -shift[mt][r]));
      float w1 = ptx::ex2_approx(fmaf(s[mt][at][2 * r + 1], c, -shift[mt][r]));
      l[mt][r] += w0 + w1;
      if constexpr (P.dropout) Base::drop(w0, w1, mt, r, j0 + at * 8 + lane % 4 * 2);
      a[step % 2][mt][n % 4] = pack<P.dtype>(w0, w1);
    };
#pragma unroll
    for (int use = 0; use < kAhead && use < kUses; ++use) fetch_b(use);
#pragma unroll
    for (int n = 0; n < kMT * 4; ++n) weigh(0, n);
#pragma unroll
    for (int use = 0; use < kUses; ++use) {
      const int step = use / kPairs, pair = use % kPairs;
      if (use + kAhead < kUses) fetch_b(use + kAhead);
      const uint32_t(&v)[4] = b[use % (kAhead + 1)];
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt) {
        mma<P.dtype>(o[mt][2 * pair], a[step % 2][mt], v[0], v[1]);
        mma<P.dtype>(o[mt][2 * pair + 1], a[step % 2][mt], v[2], v[3]);
      }
      if (step + 1 < kSteps && pair == kPairs - 1)
#pragma unroll
        for (int n = 0; n < kMT * 4; ++n) weigh(step + 1, n);
    }
  }

  // ---- The end: normalise, write ----

  __device__ void write_result() {
    // Found out anew: a few cycles, against registers that would be kept through the loop.
    const Work<P, C> here(p, x, ptx::opaque(blockIdx.x));
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = Base::first_row() + mt * 16 + r * 8;
        const Row<P> row = here.row(p, min(at, here.rows - 1));
        const Finish f = Base::finish_of(row, mt, r);
        if (lane % 4 == 0 && at < here.rows) write_lse<P>(x, here.s, row, f);
#pragma unroll
        for (int n = 0; n < kOT; ++n)
          ptx::st_shared_b32(
              base + SwizzleO::offset(warp_q * C.warp_rows + mt * 16 + r * 8 + lane / 4, n) +
                  lane % 4 * 4,
              pack<P.dtype>(o[mt][n][2 * r] * f.factor, o[mt][n][2 * r + 1] * f.factor));
      }
    // Q's rows of this warp are read by it alone: they hold O now, so that whole rows can be
    // written.
    __syncwarp();
    constexpr int kChunks = Plan::kDimV / 8;
    for (int n = lane; n < C.warp_rows * kChunks; n += 32) {
      const int in_block = warp_q * C.warp_rows + n / kChunks, chunk = n % kChunks;
      const int at = here.first + in_block;
      if (at >= here.rows || chunk * 8 >= P.dim_v) continue;
      const uint4 v = ptx::ld_shared_v4(base + SwizzleO::offset(in_block, chunk));
      uint16_t* to = const_cast<uint16_t*>(row_of<P.dtype>(x.params.out, here.b, here.head(at),
                                                           here.s.q0 + here.query(at))) +
                     chunk * 8;
      if constexpr (C.vector) {
        *reinterpret_cast<uint4*>(to) = v;
      } else {
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (chunk * 8 + e < P.dim_v) to[e] = uint16_t(word[e / 2] >> e % 2 * 16);
      }
    }
  }
  using SwizzleO = Swizzle<Plan::kDimV / 8>;

  uint32_t q[C.q_registers ? kKSteps : 1][kMT][4];
};

template <Problem P, MmaConfig C>
__device__ inline void mma_forward(const KernelArgs& x) {
  run_block<P, C, Mma<P, C>>(x);
}

}  // namespace attune
