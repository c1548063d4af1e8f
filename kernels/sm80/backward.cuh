// The backward pass on tensor cores by mma.sync, fp16 and bf16 (8.0 and up). Two kernels, without
// atomics: every element of a gradient is summed by one warp, in one order, so bits repeat.
//
//   attune_mma_dq    a block owns query rows and walks over the keys:
//                      S = Q K^T, dP = dO V^T, P and dS in registers, dQ += dS K
//   attune_mma_dkv   a block owns keys and walks over the query rows of all heads of their group:
//                      S^T = K Q^T, dP^T = V dO^T, P^T and dS^T in registers,
//                      dV += P^T dO, dK += dS^T Q
//
// Either way a warp's own rows are the rows of every product, so that P and dS go from accumulators
// into the next operand without leaving the registers. S and dP are computed twice.
#pragma once

#include "backward_scores.cuh"
#include "backward_sums.cuh"

namespace attune {

enum class Gradients { dq, dkv, dk, dv };  // what a block sums

template <Problem P, MmaBackwardConfig C, Gradients G>
class MmaBackward : BackwardScores<P, C, G != Gradients::dq> {
  static constexpr bool kKeys = G != Gradients::dq;  // own rows are keys
  static constexpr bool kSumsDim = G != Gradients::dv;
  static constexpr bool kSumsDimV = G == Gradients::dkv || G == Gradients::dv;
  using Base = BackwardScores<P, C, kKeys>;
  using Walk = BackwardWalk<P, C, kKeys>;
  using Base::kSmallPart, Base::g;
  using typename Walk::Place, typename Walk::Plan;
  using Walk::kDim, Walk::kDimV, Walk::kMT, Walk::kWarpRows, Walk::own_row;
  using Walk::x, Walk::p, Walk::s, Walk::b, Walk::base, Walk::lane, Walk::own_head;
  // What is not finite may reach sums of which it is no part: 0 * NaN is NaN.
  static constexpr bool kLeaks = Base::kFilters || P.causal || P.window();
  static constexpr int kPart = backward_part(C, P, kKeys);
  template <int N>
  using Scores = typename Base::template Scores<N>;

 public:
  __device__ MmaBackward(const GradientArgs& args, const Problem& problem, uint32_t block,
                         uint8_t* smem)
      : Base(args, problem, block, smem) {}

  __device__ void run() {
    if (Walk::first >= Walk::rows()) return;  // past the end of a shorter sequence
    if constexpr (!kKeys) {
      Base::take_states();
      if (__syncthreads_or(Base::any_coarse())) Base::find_states();
    }
    const bool wanted = kSumsDim && (kKeys ? g.dk : g.dq).data != nullptr;
    if (!wanted && (!kSumsDimV || g.dv.data == nullptr)) return;
    Walk::find_tiles();
    for (careful = false;; careful = true) {
      dx.reset();
      dv.reset();
      Walk::walk([this](const Place& at, uint32_t stage) { compute(at, stage); });
      if (!kLeaks || careful || __syncthreads_or(!finite()) == 0) break;
    }
    write();
  }

 private:
  // ---- One tile ----

  __device__ void compute(const Place& at, uint32_t stage) {
#pragma unroll 1
    for (int part = 0; part < Plan::kWalked; part += kPart) {
      const int walked = at.tile * Plan::kWalked + part;
      const auto look = Walk::look_at(at, walked, kPart);
      if (!look.some) continue;
      if constexpr (Base::kPlain)
        if (look.all && !careful && Base::template is_plain<kPart>(part, stage)) {
          attend<kPart / 8, true>(at, part, stage);
          continue;
        }
#pragma unroll 1
      for (int small = 0; small < kPart; small += kSmallPart * 8) {
        if (!Walk::look_at(at, walked + small, kSmallPart * 8).some) continue;
        attend<kSmallPart, false>(at, part + small, stage);
        if (kLeaks && careful) add_nonfinite(at.h, walked + small, kSmallPart * 8);
      }
    }
  }

  // N n8 tiles of rows from `part` of the tile on.
  template <int N, bool kFast>
  __device__ void attend(const Place& at, int part, uint32_t stage) {
    const uint32_t own = base + Walk::warp() * kWarpRows * kDim * 2, tile = stage + part * kDim * 2;
    const uint32_t own_v = base + Plan::kOwnV + Walk::warp() * kWarpRows * kDimV * 2;
    const uint32_t tile_v = stage + Plan::kTileV + part * kDimV * 2;
    const uint32_t states = stage + Plan::kStates + part * int(sizeof(RowState));
    const bool clean = kLeaks && careful;
    Scores<N> w = {}, ds = {};  // S, then P; dP, then dS
    multiply_rows<P.dtype, kDim>(w, own, tile, lane);
    if constexpr (kSumsDim) multiply_rows<P.dtype, kDimV>(ds, own_v, tile_v, lane);
    Base::template differentiate<N, kFast>(w, ds, at, part, states);
    dv.template add<kLeaks && !kFast>(w, tile_v, lane, clean);
    dx.template add<kLeaks && !kFast>(ds, tile, lane, clean);
  }

  // What was taken out of a tile reaches the sums of which it is a part: a weight times Inf or NaN.
  __device__ void add_nonfinite(int h, int walked, int count) {
    const int end = min(walked + count, int(kKeys ? s.sq : s.sk));
    for (int n = walked; n < end; ++n) {
      bool allowed[kMT][2], kept[kMT][2];
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = kKeys ? n : own_row(mt, r), j = kKeys ? own_row(mt, r) : n;
          const Row<P> row(p, s, b, h, i);
          allowed[mt][r] = i < s.sq && row.allowed(x, j);
          kept[mt][r] = allowed[mt][r] && (!P.dropout || row.kept(x, j));
        }
      dx.add_nonfinite(kKeys ? Walk::query_row(x.params.q, h, n) : Walk::key_row(x.params.k, n),
                       lane, allowed);
      if (kSumsDimV) dv.add_nonfinite(Walk::query_row(g.dout, h, n), lane, kept);
    }
  }

  // ---- The end ----

  // Sums stay zeros, or something is NaN.
  __device__ bool finite() const { return dx.times_zero() + dv.times_zero() == 0; }

  __device__ void write() const {
    const auto to = [&](const View& v) {
      return [this, &v](int row) {
        return out_row<P.dtype>(v, b, own_head, (kKeys ? s.k0 : s.q0) + Walk::warp_first() + row);
      };
    };
    const int valid = Walk::rows() - Walk::warp_first();
    // Unused keys have gradients of 0.
    const int zeros = kKeys ? int(s.sk) - Walk::warp_first() : valid;
    const uint32_t own = base + Walk::warp() * kWarpRows * kDim * 2;
    const uint32_t own_v = base + Plan::kOwnV + Walk::warp() * kWarpRows * kDimV * 2;
    const View& first = kKeys ? g.dk : g.dq;
    if (first.data != nullptr) dx.template write<C.vector>(own, lane, zeros, valid, to(first));
    if (g.dv.data != nullptr) dv.template write<C.vector>(own_v, lane, zeros, valid, to(g.dv));
  }

  BackwardSums<P.dtype, kMT, P.dim, kSumsDim> dx;  // dQ or dK
  BackwardSums<P.dtype, kMT, P.dim_v, kSumsDimV> dv;
  bool careful = false;
};

template <Problem P, MmaBackwardConfig C, Gradients G>
__device__ inline void run_backward(const GradientArgs& args, uint32_t block) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const Problem p = specialised<P>(args.forward.problem);
  MmaBackward<P, C, G>(args, p, block, smem).run();
}

// Blocks: B * H * tiles of query rows.
template <Problem P, MmaBackwardConfig C>
__device__ inline void mma_dq(const GradientArgs& args) {
  run_backward<P, C, Gradients::dq>(args, blockIdx.x);
}

// Blocks: B * Hk * tiles of keys; separate: twice that, those of dK first.
template <Problem P, MmaBackwardConfig C>
__device__ inline void mma_dkv(const GradientArgs& args) {
  if constexpr (!C.separate) {
    run_backward<P, C, Gradients::dkv>(args, blockIdx.x);
  } else {
    const uint32_t half = gridDim.x / 2;
    if (blockIdx.x < half)
      run_backward<P, C, Gradients::dk>(args, blockIdx.x);
    else
      run_backward<P, C, Gradients::dv>(args, blockIdx.x - half);
  }
}

}  // namespace attune
