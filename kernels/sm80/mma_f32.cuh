// fp32 attention at fp32 accuracy on fp16 tensor cores (8.0 and up).
//
// Each operand is split into two fp16 numbers, hi = fp16(x) and lo = fp16(x - hi), 22 bits
// together, and a product of two is hi hi + hi lo + lo hi: what is left out is below fp32's own
// rounding. fp16 has few exponents, so a tile of keys is first scaled by a power of two (a row of Q
// by its own). Tensor cores cut off when they add, and that is the largest error there is: the
// large products are summed there over 32 terms only, apart from the small ones, and added in plain
// fp32.
//
// A pre-pass splits K and V once (split_operands). What fp16 cannot hold at all (Inf, NaN, beyond
// 2^71) is marked there and computed by plain fp32 loops here, so that it behaves as in plain fp32.
#pragma once

#include "split.cuh"

namespace attune {

template <Problem P, MmaConfig C>
class MmaF32 : public MmaBlock<P, C, MmaF32<P, C>> {
  using Base = MmaBlock<P, C, MmaF32>;
  friend Base;
  using Base::base, Base::c, Base::l, Base::lane, Base::m, Base::o, Base::p, Base::warp,
      Base::warp_k, Base::warp_q, Base::work, Base::x;
  using Base::kFilters, Base::kKeys, Base::kKSteps, Base::kMT, Base::kNT, Base::kOT, Base::kScores,
      Base::kThreads;
  using typename Base::Plan;
  using Scores = typename Base::template Scores<Base::kNT>;
  using SwizzleK = Swizzle<Plan::kDim / 8>;
  using SwizzleV = Swizzle<Plan::kDimV / 8>;
  static constexpr int kPart = kNT % 4 == 0 ? 4 : 2;  // n8 tiles of S that are computed together
  static constexpr int kSteps = kKeys / 16;
  static constexpr int kRun = 2;  // steps of 16 that tensor cores sum
  // Weights up to 2^12, so that small ones do not fall below fp16's smallest numbers, and some room
  // for the maximum to grow; fp16 ends at 2^16.
  static constexpr float kBias = 12;
  // Rows that are merged are not divided by their sums first: weights above 1 could take O beyond
  // fp32 where V is near its end.
  static constexpr float kLazy = C.warps_k > 1 || C.split_kv ? 0 : 3;
  static constexpr bool kExactTop = true;
  // Tiles of V hold no NaN; what could leak is a NaN score that a mask's -inf does not hide.
  static constexpr bool kLeaks = P.mask != MaskKind::none;
  static constexpr int kUnset = 126;  // exponent_o before the first tile: above every tile's

 public:
  __device__ MmaF32(const KernelArgs& args, const Problem& problem, const Work<P, C>& w,
                    uint8_t* smem)
      : Base(args, problem, w, smem) {}

 private:
  // What brings O back to its own units. Last of all, where nothing is merged: before the row's sum
  // has divided it, O times this could be beyond fp32, though the result is not.
  __device__ float unit() const { return power_of_two(-exponent_o); }

  // The same ahead of merging, after the weights' bias is gone.
  __device__ void settle() {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int n = 0; n < kOT; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[mt][n][e] *= unit();
  }

  // ---- Loads ----

  // Each warp brings rows of Q, one after another: scaled, split, with the scale's inverse beside.
  // A row that cannot be split has NaN for a scale.
  __device__ void load_q() {
    exponent_o = kUnset;
    constexpr int kColumns = (Plan::kDim + 63) / 64;  // pairs of a lane
    const float fold = kScores ? 1.f : x.params.scale * kLog2e;
    const int first = int(ptx::opaque(uint32_t(work.first)));
    const int lane = int(ptx::opaque(uint32_t(this->lane)));
#pragma unroll 4
    for (int n = warp_k; n < C.warp_rows; n += C.warps_k) {
      const int row = warp_q * C.warp_rows + n, r = first + row;
      const bool inside = r < work.rows;
      const int safe = inside ? r : first;
      const float* from =
          row_of<P.dtype>(x.params.q, work.b, work.head(safe), work.s.q0 + work.query(safe));
      float v[kColumns][2], largest = 0;
      bool bad = false;
#pragma unroll
      for (int e = 0; e < kColumns; ++e)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int d = e * 64 + lane * 2 + half;
          float value = inside && d < P.dim ? from[d] * fold : 0.f;
          if (!(fabsf(value) < 0x1p71f)) {
            bad = true;
            value = 0;
          }
          v[e][half] = value;
          largest = fmaxf(largest, fabsf(value));
        }
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
      bad = __any_sync(~0u, bad);
      const int exponent = exponent_for(largest, kMaxExponent, 1);
      const float scale = power_of_two(exponent);
#pragma unroll
      for (int e = 0; e < kColumns; ++e) {
        const int d = e * 64 + lane * 2;
        if (d >= Plan::kDim) continue;
        uint32_t hi, lo;
        split_pair(v[e][0] * scale, v[e][1] * scale, hi, lo);
        const uint32_t at = base + SwizzleK::offset(row, d / 8) + d % 8 * 2;
        ptx::st_shared_b32(at, hi);
        ptx::st_shared_b32(at + C.block_q() * Plan::kDim * 2, lo);
      }
      if (lane == 0)
        ptx::st_shared_f32(base + Plan::kQ + row * 4,
                           bad ? __uint_as_float(0x7fffffffu) : power_of_two(-exponent));
    }
    ptx::griddepcontrol_wait();  // for the pre-pass: tiles come next
  }

  // Tiles lie in the workspace as they will in shared memory.
  __device__ void load_tile(int tile, uint32_t stage) {
    const SplitTiles<P, C> split(p, x.params);
    // opaque: computed here, not kept in registers through the loop
    const int b = int(ptx::opaque(uint32_t(work.b))), hk = int(ptx::opaque(uint32_t(work.hk)));
    const int64_t at = (b * p.heads_kv + hk) * split.tiles + tile;
    const char* from = split.data + at * split.kBytes;
    const int thread = int(ptx::opaque(threadIdx.x));
    constexpr int kChunks = split.kBytes / kChunk;
#pragma unroll
    for (int n = 0; n < (kChunks + kThreads - 1) / kThreads; ++n)
      if (const int place = (n * kThreads + thread) * kChunk;
          kChunks % kThreads == 0 || place < split.kBytes)
        ptx::cp_async_cg(stage + place, from + place, kChunk);
    if (threadIdx.x == 0)
      ptx::cp_async_cg(stage + Plan::kK + Plan::kV, split.notes + at, kTileNote);
    if constexpr (C.stage_mask) Base::load_mask(tile * C.block_k, stage + Plan::kMaskAt);
  }

  __device__ void arrive(int, uint32_t) { __syncthreads(); }

  __device__ void take_q() {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        q_scale[mt][r] = ptx::ld_shared_f32(base + Plan::kQ +
                                            (Base::first_row() - work.first + mt * 16 + r * 8) * 4);
  }

  // Whether some row of the warp could not be split.
  __device__ bool bad_q() const {
    bool bad = false;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) bad |= q_scale[mt][r] != q_scale[mt][r];
    return __any_sync(~0u, bad);
  }

  // ---- One tile ----

  __device__ void compute(int j0, uint32_t stage) {
    const uint4 words = ptx::ld_shared_v4(stage + Plan::kK + Plan::kV);
    const TileNote note{int(words.x), int(words.y), int(words.z), int(words.w)};
    Scores s;
    products_qk(s, stage, power_of_two(-note.exponent_k));
    if (note.bad_k != 0 || bad_q()) plain_products(s, j0);
    const bool inside = j0 >= warp.all_begin && j0 + kKeys <= warp.all_end;
    if (!inside)
      Base::template score<false, kNT>(s, j0, stage + Plan::kMaskAt, 0);
    else if (kFilters || kScores)
      Base::template score<true, kNT>(s, j0, stage + Plan::kMaskAt, 0);
    if (P.mask != MaskKind::none && Base::careful) Base::template forbid<kNT>(s, j0);
    Base::template rescale<kNT>(s, kLazy);
    if (note.bad_v != 0) Base::add_nonfinite(j0);
    settle_exponent(note.exponent_v);
    weigh(s, j0);
    products_pv(
        s, stage + Plan::kK,
        exponent_o - note.exponent_v < -126 ? 0.f : power_of_two(exponent_o - note.exponent_v));
  }

  __device__ void products_qk(Scores& s, uint32_t stage, float scale) {
    constexpr int kLoQ = C.block_q() * Plan::kDim * 2, kLoK = C.block_k * Plan::kDim * 2;
    const int row = warp_q * C.warp_rows + lane % 16, half_q = lane / 16;
    const int key = warp_k * kKeys + lane % 8 + lane / 16 * 8, half_k = lane / 8 % 2;
    const uint32_t q_at = ptx::opaque(base + SwizzleK::offset(row, half_q));
    const uint32_t k_at = stage + SwizzleK::offset(key, half_k);
#pragma unroll
    for (int part = 0; part < kNT; part += kPart) {
      float small[kMT][kPart][4] = {};
#pragma unroll(kKSteps > 8 ? 1 : kKSteps)  // all of a long loop would fetch more than fits
      for (int first = 0; first < kKSteps; first += kRun) {
        float large[kMT][kPart][4] = {};
#pragma unroll
        for (int step = first; step < first + kRun; ++step) {
          if (kKSteps % kRun != 0 && step >= kKSteps) break;
          uint32_t qh[kMT][4], ql[kMT][4];
#pragma unroll
          for (int mt = 0; mt < kMT; ++mt) {
            const uint32_t at = SwizzleK::step(q_at, row, half_q, step) + mt * 16 * Plan::kDim * 2;
            ptx::ldmatrix_x4(qh[mt], at);
            ptx::ldmatrix_x4(ql[mt], at + kLoQ);
          }
#pragma unroll
          for (int n = 0; n < kPart; n += 2) {
            const uint32_t at =
                SwizzleK::step(k_at, key, half_k, step) + (part + n) * 8 * Plan::kDim * 2;
            uint32_t kh[4], kl[4];
            ptx::ldmatrix_x4(kh, at);
            ptx::ldmatrix_x4(kl, at + kLoK);
#pragma unroll
            for (int mt = 0; mt < kMT; ++mt) {
              mma<DType::f16>(small[mt][n], ql[mt], kh[0], kh[1]);
              mma<DType::f16>(small[mt][n + 1], ql[mt], kh[2], kh[3]);
              mma<DType::f16>(large[mt][n], qh[mt], kh[0], kh[1]);
              mma<DType::f16>(large[mt][n + 1], qh[mt], kh[2], kh[3]);
              mma<DType::f16>(small[mt][n], qh[mt], kl[0], kl[1]);
              mma<DType::f16>(small[mt][n + 1], qh[mt], kl[2], kl[3]);
            }
          }
        }
#pragma unroll
        for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
          for (int n = 0; n < kPart; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              s[mt][part + n][e] =
                  first == 0 ? large[mt][n][e] : s[mt][part + n][e] + large[mt][n][e];
      }
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int n = 0; n < kPart; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[mt][part + n][e] =
                (s[mt][part + n][e] + small[mt][n][e]) * (q_scale[mt][e / 2] * scale);
    }
  }

  // The same by fp32 loops over the caller's own Q and K.
  __device__ void plain_products(Scores& s, int j0) const {
    const float fold = kScores ? 1.f : x.params.scale * kLog2e;
    const int b = int(ptx::opaque(uint32_t(work.b))), hk = int(ptx::opaque(uint32_t(work.hk)));
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int n = 0; n < kNT; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[mt][n][e] = 0;
    for (int d = 0; d < P.dim; ++d) {
      float q[kMT][2];
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = min(Base::first_row() + mt * 16 + r * 8, work.rows - 1);
          q[mt][r] =
              row_of<P.dtype>(x.params.q, b, work.head(at), work.s.q0 + work.query(at))[d] * fold;
        }
#pragma unroll
      for (int n = 0; n < kNT; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t j = min(int64_t(j0 + n * 8 + lane % 4 * 2 + half), work.s.sk - 1);
          const float k = row_of<P.dtype>(x.params.k, b, hk, work.s.k0 + j)[d];
#pragma unroll
          for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              s[mt][n][2 * r + half] = fmaf(q[mt][r], k, s[mt][n][2 * r + half]);
        }
    }
  }

  // O is held times 2^exponent_o: the smallest of its tiles' exponents, so that none is too large.
  __device__ void settle_exponent(int exponent) {
    if (exponent >= exponent_o) return;
    const float scale = exponent_o - exponent > 126 ? 0.f : power_of_two(exponent - exponent_o);
    exponent_o = exponent;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int n = 0; n < kOT; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[mt][n][e] *= scale;
  }

  // S becomes P, in place: two weights a register, hi where the first stood, lo where the second
  // did. The maximum is taken off first, so that its own weight is a power of two: exact in fp16,
  // and in the division at the end.
  __device__ void weigh(Scores& s, int j0) {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int n = 0; n < kNT; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float top = m[mt][r] == -kInf ? 0.f : m[mt][r];
          float w[2];
#pragma unroll
          for (int e = 0; e < 2; ++e)
            w[e] = ptx::ex2_approx(fmaf(s[mt][n][2 * r + e] - top, c, kBias));
          l[mt][r] += w[0] + w[1];
          if constexpr (P.dropout) Base::drop(w[0], w[1], mt, r, j0 + n * 8 + lane % 4 * 2);
          uint32_t hi, lo;
          split_pair(w[0], w[1], hi, lo);
          s[mt][n][2 * r] = __uint_as_float(hi);
          s[mt][n][2 * r + 1] = __uint_as_float(lo);
        }
  }

  __device__ void products_pv(const Scores& s, uint32_t v, float scale) {
    constexpr int kLoV = C.block_k * Plan::kDimV * 2;
    const int key = warp_k * kKeys + lane % 16;
    const uint32_t v_at = v + SwizzleV::offset(key, lane / 16);
#pragma unroll
    for (int pair = 0; pair < kOT / 2; ++pair) {
      float small[kMT][2][4] = {};
#pragma unroll
      for (int first = 0; first < kSteps; first += kRun) {
        float large[kMT][2][4] = {};
#pragma unroll
        for (int step = first; step < min(first + kRun, kSteps); ++step) {
          const uint32_t at =
              SwizzleV::step(v_at, key, lane / 16, pair) + step * 16 * Plan::kDimV * 2;
          uint32_t vh[4], vl[4];
          ptx::ldmatrix_x4_trans(vh, at);
          ptx::ldmatrix_x4_trans(vl, at + kLoV);
#pragma unroll
          for (int mt = 0; mt < kMT; ++mt) {
            uint32_t ph[4], pl[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              ph[n] = __float_as_uint(s[mt][2 * step + n / 2][2 * (n % 2)]);
              pl[n] = __float_as_uint(s[mt][2 * step + n / 2][2 * (n % 2) + 1]);
            }
            mma<DType::f16>(small[mt][0], pl, vh[0], vh[1]);
            mma<DType::f16>(small[mt][1], pl, vh[2], vh[3]);
            mma<DType::f16>(large[mt][0], ph, vh[0], vh[1]);
            mma<DType::f16>(large[mt][1], ph, vh[2], vh[3]);
            mma<DType::f16>(small[mt][0], ph, vl[0], vl[1]);
            mma<DType::f16>(small[mt][1], ph, vl[2], vl[3]);
          }
        }
        const bool last = first + kRun >= kSteps;  // the small ones go with the last
#pragma unroll
        for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              o[mt][2 * pair + n][e] =
                  fmaf(last ? large[mt][n][e] + small[mt][n][e] : large[mt][n][e], scale,
                       o[mt][2 * pair + n][e]);
      }
    }
  }

  // ---- The end ----

  __device__ void write_result() {
    const float last = C.warps_k > 1 ? 1.f : unit();
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = Base::first_row() + mt * 16 + r * 8;
        if (at >= work.rows) continue;
        const Row<P> row = work.row(p, at);
        const Finish f = Base::finish_of(row, mt, r);
        if (lane % 4 == 0) write_lse<P>(x, work.s, row, f);
        float* out =
            const_cast<float*>(row_of<P.dtype>(x.params.out, work.b, row.h, work.s.q0 + row.i));
#pragma unroll
        for (int n = 0; n < kOT; ++n) {
          const int d = n * 8 + lane % 4 * 2;
          const float first = o[mt][n][2 * r] * f.factor * last;
          const float second = o[mt][n][2 * r + 1] * f.factor * last;
          if (C.vector && d < P.dim_v) {
            *reinterpret_cast<float2*>(out + d) = make_float2(first, second);
          } else {
            if (d < P.dim_v) out[d] = first;
            if (d + 1 < P.dim_v) out[d + 1] = second;
          }
        }
      }
  }

  float q_scale[kMT][2];
  int exponent_o;
};

template <Problem P, MmaConfig C>
__device__ inline void mma_f32_forward(const KernelArgs& x) {
  run_block<P, C, MmaF32<P, C>>(x);
}

}  // namespace attune
