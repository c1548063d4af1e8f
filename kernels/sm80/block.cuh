// What the tensor-core kernels share: a block's rows and their running softmax, the walk over the
// tiles of keys, and the end.
#pragma once

#include "../ptx/math.h"
#include "scores.cuh"

namespace attune {

// Kernel is the kernel's own class, derived from this one, with load_q, take_q, load_tile, arrive,
// compute, settle, write_result, kBias, kLeaks and kExactTop (weights are 2^((s - m) c + kBias),
// not by way of a rounded shift).
template <Problem P, MmaConfig C, class Kernel>
class MmaBlock : protected MmaScores<P, C> {
 protected:
  using Base = MmaScores<P, C>;
  using Base::base, Base::c, Base::careful, Base::lane, Base::p, Base::warp_k, Base::warp_q,
      Base::work, Base::x;
  using Base::first_row, Base::kKeys, Base::kMT, Base::kOT, Base::next_live;
  using typename Base::Plan;
  template <int N>
  using Scores = typename Base::template Scores<N>;

  __device__ MmaBlock(const KernelArgs& args, const Problem& problem, const Work<P, C>& w,
                      uint8_t* smem)
      : Base(args, problem, w, smem) {}

 public:
  // The walk, and once more with care if something leaked: a forbidden key has weight 0, but 0 *
  // NaN is NaN, and so is NaN - inf. That is seen in the result, and costs nothing where all is
  // finite.
  __device__ void run() {
    for (careful = false;; careful = true) {
      reset();
      walk();
      if (!Kernel::kLeaks || careful || __syncthreads_or(!finite()) == 0) break;
    }
    finish();
  }

 protected:
  __device__ void reset() {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        m[mt][r] = -kInf;
        l[mt][r] = 0;
      }
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int n = 0; n < kOT; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[mt][n][e] = 0;
  }

  __device__ bool finite() const {
    float sum = 0;  // of zeros, or NaN
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sum = fmaf(l[mt][r], 0.f, sum);
#pragma unroll
      for (int n = 0; n < kOT; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum = fmaf(o[mt][n][e], 0.f, sum);
    }
    return sum == 0;
  }

  // The walk: tiles come `stages` - 1 ahead, and one barrier a tile (in arrive) says both that a
  // tile is there and that the one before it may be overwritten.
  __device__ void walk() {
    Kernel& kernel = static_cast<Kernel&>(*this);
    const int last = min(work.first + C.block_q(), work.rows) - 1;
    block = span_of<P, C>(p, work, work.first, last);
    const int warp_first = min(work.first + warp_q * C.warp_rows, last);
    warp = span_of<P, C>(p, work, warp_first, min(warp_first + C.warp_rows - 1, last));

    int begin = block.begin / C.block_k, end = (block.end + C.block_k - 1) / C.block_k;
    if constexpr (C.split_kv) {
      const int share = (end - begin + x.blocks.splits - 1) / x.blocks.splits;
      begin += split() * share;
      end = min(end, begin + share);
    }
    kernel.load_q();
    int ahead = next_live(begin, end);
    int tile = ahead;
#pragma unroll
    for (int slot = 0; slot < C.stages - 1; ++slot) {
      if (ahead < end) kernel.load_tile(ahead, stage_of(slot));
      ptx::cp_async_commit_group();
      ahead = next_live(ahead + 1, end);
    }
    int slot = 0;
    for (bool first = true; tile < end; tile = next_live(tile + 1, end), first = false) {
      ptx::cp_async_wait_group<C.stages - 2>();
      kernel.arrive(tile, stage_of(slot));
      if (first) kernel.take_q();
      if (ahead < end) kernel.load_tile(ahead, stage_of(slot == 0 ? C.stages - 1 : slot - 1));
      ptx::cp_async_commit_group();
      ahead = next_live(ahead + 1, end);
      // Above the diagonal the upper warps have nothing to do.
      const int j0 = tile * C.block_k + warp_k * kKeys;
      if (j0 < warp.end && j0 + kKeys > warp.begin) kernel.compute(j0, stage_of(slot));
      slot = slot == C.stages - 1 ? 0 : slot + 1;
    }
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // results go where Q was: every copy has landed, also when there was no tile
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        l[mt][r] += __shfl_xor_sync(~0u, l[mt][r], 1);
        l[mt][r] += __shfl_xor_sync(~0u, l[mt][r], 2);
      }
  }

  __device__ int split() const { return int(blockIdx.x % uint32_t(x.blocks.splits)); }
  __device__ uint32_t stage_of(int slot) const {
    return base + Plan::kQ + Plan::kScales + slot * Plan::kStage;
  }

  // What was taken out of V reaches the rows that may look at it: a positive weight times Inf or
  // NaN.
  __device__ void add_nonfinite(int j0) {
    for (int j = j0; j < min(j0 + kKeys, int(work.s.sk)); ++j) {
      const Storage<P.dtype>* v = row_of<P.dtype>(x.params.v, work.b, work.hk, work.s.k0 + j);
      bool allowed[kMT][2];
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = first_row() + mt * 16 + r * 8;
          allowed[mt][r] = at < work.rows;
          if (!allowed[mt][r]) continue;
          const Row<P> row = work.row(p, at);
          allowed[mt][r] = row.allowed(x, j) && (!P.dropout || row.kept(x, j));
        }
#pragma unroll
      for (int n = 0; n < kOT; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = n * 8 + lane % 4 * 2 + e;
          const float value = d < P.dim_v ? to_float<P.dtype>(v[d]) : 0.f;
          if (fabsf(value) < kInf) continue;
#pragma unroll
          for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              if (allowed[mt][r]) o[mt][n][2 * r + e] += value;
        }
    }
  }

  // Weights are 2^(s c - shift), where the shift stands for the row's maximum: m c, rounded, so
  // that one fused multiply-add does it. Beyond 2^20 the rounding would matter; there s - m is
  // taken first.
  __device__ float shift_of(float top) const { return __fmul_rn(top, c) - Kernel::kBias; }
  __device__ static bool is_vast(float shift) { return fabsf(shift) > 0x1p20f; }
  // What the sums are off by, as a power of two: sum = 2^residual * sum of 2^((s - m) c).
  __device__ float residual(float top) const {
    if constexpr (Kernel::kExactTop) return Kernel::kBias;
    const float shift = shift_of(top);
    const float rounded_off = fmaf(top, c, -shift);
    return is_vast(shift) ? Kernel::kBias : rounded_off;  // -inf is vast
  }

  // The rows' shifts; where one is too large, the maximum is taken off the scores themselves.
  template <int N>
  __device__ void shifts_of(float (&shift)[kMT][2], Scores<N>& s) const {
    bool vast = false;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        shift[mt][r] = m[mt][r] == -kInf ? 0.f : shift_of(m[mt][r]);
        vast |= is_vast(shift[mt][r]);
      }
    if (!__any_sync(~0u, vast)) return;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!is_vast(shift[mt][r])) continue;
        shift[mt][r] = -Kernel::kBias;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e)
            s[mt][n][e] = s[mt][n][e] == -kInf ? -kInf : s[mt][n][e] - m[mt][r];
      }
  }

  // Raises the rows' maxima where they grew by much, and shrinks what was summed under the old
  // ones.
  template <int N>
  __device__ void rescale(const Scores<N>& s, float lazy) {
    float top[kMT][2];
    bool grew = false;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float t = s[mt][0][2 * r];
#pragma unroll
        for (int n = 0; n < N; ++n) t = fmaxf(t, fmaxf(s[mt][n][2 * r], s[mt][n][2 * r + 1]));
        t = fmaxf(t, __shfl_xor_sync(~0u, t, 1));
        t = fmaxf(t, __shfl_xor_sync(~0u, t, 2));
        top[mt][r] = t;
        grew |= t > m[mt][r] && !((t - m[mt][r]) * c <= lazy);
      }
    if (!__any_sync(~0u, grew)) return;
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float old = m[mt][r], raised = fmaxf(old, top[mt][r]);
        float alpha = ptx::ex2_approx((old - raised) * c + (residual(raised) - residual(old)));
        alpha = old == -kInf ? 1.f : alpha;  // nothing was summed yet
        m[mt][r] = raised;
        l[mt][r] *= alpha;
#pragma unroll
        for (int n = 0; n < kOT; ++n) {
          o[mt][n][2 * r] *= alpha;
          o[mt][n][2 * r + 1] *= alpha;
        }
      }
  }

  // Sums and O relative to the very maximum, as merging wants them.
  __device__ void to_exact_units() {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float unit = ptx::ex2_approx(-residual(m[mt][r]));
        l[mt][r] *= unit;
#pragma unroll
        for (int n = 0; n < kOT; ++n) {
          o[mt][n][2 * r] *= unit;
          o[mt][n][2 * r + 1] *= unit;
        }
      }
  }

  // Warps that shared rows: the others leave maximum, sum and O in shared memory for the first one.
  __device__ void merge_warps() {
    constexpr int kPart = kMT * (4 + kOT * 4);  // floats a lane
    __syncthreads();
    const auto slot = [&](int of_warp_k, int n) {
      return base + uint32_t(((warp_q * C.warps_k + of_warp_k) * kPart + n) * 32 + lane) * 4;
    };
    if (warp_k != 0) {
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ptx::st_shared_f32(slot(warp_k, mt * 4 + r), m[mt][r]);
          ptx::st_shared_f32(slot(warp_k, mt * 4 + 2 + r), l[mt][r]);
        }
#pragma unroll
        for (int n = 0; n < kOT; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            ptx::st_shared_f32(slot(warp_k, kMT * 4 + (mt * kOT + n) * 4 + e), o[mt][n][e]);
      }
    }
    __syncthreads();
    if (warp_k != 0) return;
    for (int other = 1; other < C.warps_k; ++other)
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float their_m = ptx::ld_shared_f32(slot(other, mt * 4 + r));
          const float top = fmaxf(m[mt][r], their_m);
          const float safe = top == -kInf ? 0.f : top;
          const float mine = ptx::ex2_approx((m[mt][r] - safe) * c);
          const float theirs = ptx::ex2_approx((their_m - safe) * c);
          m[mt][r] = top;
          l[mt][r] = l[mt][r] * mine + ptx::ld_shared_f32(slot(other, mt * 4 + 2 + r)) * theirs;
#pragma unroll
          for (int n = 0; n < kOT; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              o[mt][n][2 * r + e] =
                  o[mt][n][2 * r + e] * mine +
                  ptx::ld_shared_f32(slot(other, kMT * 4 + (mt * kOT + n) * 4 + 2 * r + e)) *
                      theirs;
        }
    __syncwarp();
  }

  // Split-KV: O as it is, with its maximum and sum, for attune_combine.
  __device__ void write_part() {
    const PartOf<P> part(part_memory<P, C>(p, x.params), p, x.blocks.splits);
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = first_row() + mt * 16 + r * 8;
        if (at >= work.rows) continue;
        const int64_t row = part.row(split(), work.b, work.head(at), work.query(at));
        if (lane % 4 == 0) part.stats[row] = make_float2(m[mt][r], l[mt][r]);
        float* to = part.out + row * Plan::kDimV + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kOT; ++n)
          *reinterpret_cast<float2*>(to + n * 8) =
              make_float2(o[mt][n][2 * r], o[mt][n][2 * r + 1]);
      }
  }

  // The end: whoever shared rows merges, and the warps that hold a result write it.
  __device__ void finish() {
    if constexpr (C.warps_k > 1 || C.split_kv) {
      to_exact_units();
      static_cast<Kernel&>(*this).settle();
    }
    if constexpr (C.warps_k > 1) {
      merge_warps();
      if (warp_k != 0) return;
    }
    if constexpr (C.split_kv)
      write_part();
    else
      static_cast<Kernel&>(*this).write_result();
  }

  // Factor and denominator of the lane's row; the sums are relative to 2^top.
  __device__ Finish finish_of(const Row<P>& row, int mt, int r) const {
    const float shift = C.warps_k > 1 ? m[mt][r] * c : shift_of(m[mt][r]);
    return finish_row<P>(x, row, m[mt][r] == -kInf ? -kInf : shift, l[mt][r]);
  }

  Span block, warp;
  float m[kMT][2], l[kMT][2];  // maximum and sum of each row
  float o[kMT][kOT][4];
};

template <Problem P, MmaConfig C, class Kernel>
__device__ inline void run_block(const KernelArgs& x) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const Problem p = specialised<P>(x.problem);
  const Work<P, C> work(p, x, blockIdx.x);
  if constexpr (C.split_kv) ptx::griddepcontrol_launch_dependents();
  if (work.first >= work.rows) return;  // past the end of a shorter sequence
  Kernel(x, p, work, smem).run();
}

}  // namespace attune
