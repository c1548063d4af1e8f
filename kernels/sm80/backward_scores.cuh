// What lies between the products of the backward pass: S becomes P, and dP becomes dS.
#pragma once

#include "../tile/backward_rows.h"
#include "backward_walk.cuh"

namespace attune {

template <Problem P, MmaBackwardConfig C, bool kKeys>
class BackwardScores : protected BackwardWalk<P, C, kKeys> {
 protected:
  using Walk = BackwardWalk<P, C, kKeys>;
  using typename Walk::Place, typename Walk::Plan;
  using Walk::kDim, Walk::kDimV, Walk::kMT, Walk::kWarpRows, Walk::own_row;
  using Walk::x, Walk::p, Walk::s, Walk::b, Walk::base, Walk::lane, Walk::own_head;
  static constexpr int kSmallPart = 2;  // n8 tiles: of code that would be long, or keep much
  // Something may forbid a key inside the range that causal limit, window and lengths leave.
  static constexpr bool kFilters =
      P.mask != MaskKind::none || P.block_mask_q != 0 || P.mask_mod || P.dropout;
  // A score is q.k times the scale, and no more.
  static constexpr bool kPlain = !kFilters && !P.softcap && !P.alibi;
  template <int N>
  using Scores = float[kMT][N][4];

  __device__ BackwardScores(const GradientArgs& args, const Problem& problem, uint32_t block,
                            uint8_t* smem)
      : Walk(args, problem, block, smem) {}

  __device__ static RowState load_state(uint32_t smem) {
    const uint4 v = ptx::ld_shared_v4(smem);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }

  // LSE stands in for maximum and sum.
  __device__ static bool is_plain(const RowState& state) {
    return state.weight == 1 && fabsf(state.shift) < kCoarseLse;
  }
  template <int kPart>
  __device__ bool is_plain(int part, uint32_t stage) const {
    bool plain = true;
    if constexpr (kKeys) {
      plain = is_plain(
          load_state(stage + Plan::kStates + (part + lane % kPart) * int(sizeof(RowState))));
    } else {
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) plain = plain && is_plain(state[mt][r]);
    }
    return __all_sync(~0u, plain);
  }

  // Fast: where all keys are allowed, and no row is special.
  template <int N, bool kFast>
  __device__ void differentiate(Scores<N>& w, Scores<N>& ds, const Place& at, int part,
                                uint32_t states) const {
    if constexpr (kFast)
      differentiate_plainly<N>(w, ds, states);
    else
      differentiate_each<N>(w, ds, at, part, states);
  }

 private:
  // All keys are allowed, and no row is special: P = 2^(s c - shift), by one fused multiply-add.
  template <int N>
  __device__ void differentiate_plainly(Scores<N>& w, Scores<N>& ds, uint32_t states) const {
    const float scale = x.params.scale, c = scale * kLog2e;
    const auto one = [&](float& t, float& dp, float shift, float delta) {
      t = ptx::ex2_approx(fmaf(t, c, -shift));
      dp = t * fmaf(dp, scale, -delta);
    };
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float shift = 0, delta = 0;
        if constexpr (kKeys) {
          const RowState of =
              load_state(states + (n * 8 + lane % 4 * 2 + e) * int(sizeof(RowState)));
          shift = of.shift * kLog2e;
          delta = of.delta * scale;
        }
#pragma unroll
        for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if constexpr (!kKeys) {
              shift = state[mt][r].shift * kLog2e;
              delta = state[mt][r].delta * scale;
            }
            one(w[mt][n][2 * r + e], ds[mt][n][2 * r + e], shift, delta);
          }
      }
  }

  // What the mask adds, where it may be read.
  __device__ float bias_of(const Row<P>& row, bool looks, int j) const {
    return P.mask != MaskKind::none && looks && row.in_range(j) ? row.mask(x, j) : 0.f;
  }

  // Element by element, with all that may forbid a key or make something else of its score.
  template <int N>
  __device__ void differentiate_each(Scores<N>& w, Scores<N>& ds, const Place& at, int part,
                                     uint32_t states) const {
    const int walked = at.tile * Plan::kWalked + part + lane % 4 * 2;
    const auto one = [&](const Row<P>& row, const RowState& of, int j, float& t, float& dp) {
      const float bias = bias_of(row, of.weight != 0, j);
      Derivative d{kNothing, kNothing};
      // Asked here, since a NaN of q.k would hide it.
      if (P.mask == MaskKind::none || bias != -kInf)
        d = derivative<P, false, false>(x, row, of, t, dp, j, bias);
      t = d.weight;
      dp = d.dscore;
    };
    if constexpr (kKeys) {
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const RowState of =
              load_state(states + (n * 8 + lane % 4 * 2 + e) * int(sizeof(RowState)));
          const Row<P> row(p, s, b, at.h, walked + n * 8 + e);
#pragma unroll
          for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              one(row, of, own_row(mt, r), w[mt][n][2 * r + e], ds[mt][n][2 * r + e]);
        }
    } else {
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Row<P> row(p, s, b, at.h, own_row(mt, r));
#pragma unroll
          for (int n = 0; n < N; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              one(row, state[mt][r], walked + n * 8 + e, w[mt][n][2 * r + e], ds[mt][n][2 * r + e]);
        }
    }
  }

 protected:
  // ---- Query rows: their states, anew where LSE is too coarse ----

  __device__ void take_states() {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = own_row(mt, r);
        state[mt][r] = RowState{0, 0, 0, 0};
        coarse[mt][r] = false;
        if (i >= s.sq) continue;
        state[mt][r] = row_state(x, b, own_head, i);
        const float lse = *row_of<DType::f32>(x.params.lse, b, own_head, s.q0 + i);
        coarse[mt][r] = fabsf(lse) >= kCoarseLse && fabsf(lse) < kInf;
      }
  }
  __device__ bool any_coarse() const {
    bool any = false;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) any |= coarse[mt][r];
    return any;
  }

  // Maximum and sum of scores as tensor cores round them, for this kernel and the next.
  __device__ void find_states() {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[mt][r] = -kInf;
        sum[mt][r] = 0;
      }
    Walk::find_tiles();
    Walk::walk([this](const Place& at, uint32_t stage) {
#pragma unroll 1
      for (int part = 0; part < Plan::kWalked; part += kSmallPart * 8)
        if (Walk::look_at(at, at.tile * Plan::kWalked + part, kSmallPart * 8).some)
          measure<kSmallPart>(at, part, stage);
    });
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float all = sum[mt][r] + __shfl_xor_sync(~0u, sum[mt][r], 1);
        all += __shfl_xor_sync(~0u, all, 2);
        if (!coarse[mt][r]) continue;
        const Row<P> row(p, s, b, own_head, own_row(mt, r));
        const float sink = P.sinks ? row.sink(x) : -kInf;
        const float highest = fmaxf(top[mt][r], sink);
        const float of_keys = weight_of(top[mt][r], highest);
        state[mt][r].shift = all == 0 ? 0.f : top[mt][r];
        state[mt][r].weight = all == 0 ? 0.f : of_keys / (all * of_keys + weight_of(sink, highest));
        if (lane % 4 == 0) row_state(x, b, own_head, row.i) = state[mt][r];
      }
  }

  template <int N>
  __device__ void measure(const Place& at, int part, uint32_t stage) {
    Scores<N> t = {};
    multiply_rows<P.dtype, kDim>(t, base + Walk::warp() * kWarpRows * kDim * 2,
                                 stage + part * kDim * 2, lane);
    const int walked = at.tile * Plan::kWalked + part + lane % 4 * 2;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Row<P> row(p, s, b, at.h, own_row(mt, r));
        const bool looks = row.i < s.sq;
        float highest = top[mt][r];
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = walked + n * 8 + e;
            const float bias = bias_of(row, looks, j);
            float& score = t[mt][n][2 * r + e];
            score = looks && row.in_range(j) && (P.mask == MaskKind::none || bias != -kInf)
                        ? row.template score<false>(x, score, j, bias)
                        : -kInf;
            highest = fmaxf(highest, score);
          }
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
        sum[mt][r] *= weight_of(top[mt][r], highest);
        top[mt][r] = highest;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) sum[mt][r] += weight_of(t[mt][n][2 * r + e], highest);
      }
  }

  RowState state[kMT][2];  // of own query rows

 private:
  bool coarse[kMT][2];
  float top[kMT][2], sum[kMT][2];
};

}  // namespace attune
