// What the tensor-core kernels share: a block's rows and their running softmax, the walk over the
// tiles of keys, the features, and the end.
#pragma once

#include "../ptx/math.h"
#include "combine.cuh"
#include "tile.cuh"
#include "work.cuh"

namespace attune {

// Where things lie in shared memory, in bytes: as smem_bytes() of config.h counts them.
template <Problem P, MmaConfig C>
struct MmaPlan {
  static constexpr int kSize = operand_bytes(P.dtype);
  static constexpr int kDim = round_up(P.dim, 16), kDimV = round_up(P.dim_v, 16);
  static constexpr int kQ = C.block_q() * (kDim > kDimV ? kDim : kDimV) * kSize;
  static constexpr int kScales = P.dtype == DType::f32 ? round_up(C.block_q() * 4, kSmemAlign) : 0;
  static constexpr int kK = C.block_k * kDim * kSize, kV = C.block_k * kDimV * kSize;
  static constexpr int kNote = P.dtype == DType::f32 ? kTileNote : 0;
  static constexpr int kMask = mask_tile_bytes(C, P);
  static constexpr int kStage = round_up(kK + kV + kNote + kMask, kSmemAlign);
  static constexpr int kMaskAt = kK + kV + kNote;  // in a stage
};

// Kernel is the kernel's own class, derived from this one: load_q, load_tile, arrive, compute,
// factor_of.
template <Problem P, MmaConfig C, class Kernel>
class MmaBlock {
 protected:
  using Plan = MmaPlan<P, C>;
  static constexpr int kThreads = C.threads();
  static constexpr int kMT = C.warp_rows / 16;         // m16 tiles of a warp
  static constexpr int kKeys = C.block_k / C.warps_k;  // keys of a warp in a tile
  static constexpr int kNT = kKeys / 8;                // n8 tiles of S
  static constexpr int kOT = Plan::kDimV / 8;          // n8 tiles of O
  static constexpr int kKSteps = Plan::kDim / 16;
  // Something may forbid a key inside the range that causal limit, window and lengths leave.
  static constexpr bool kFilters =
      P.mask != MaskKind::none || P.block_mask_q != 0 || P.mask_mod || P.score_mod || P.dropout;
  static constexpr bool kMaskFirst = mask_first(P);
  static constexpr bool kScores = scored(P) || (P.mask > MaskKind::boolean && !kMaskFirst);

  template <int N>  // n8 tiles
  using Scores = float[kMT][N][4];

  __device__ MmaBlock(const KernelArgs& args, const Problem& problem, const Work<P, C>& w,
                      uint8_t* smem)
      : x(args),
        p(problem),
        work(w),
        base(ptx::shared_address(smem)),
        c(score_unit<P>(args.params)) {
    lane = threadIdx.x % 32;
    warp_q = threadIdx.x / 32 / C.warps_k;
    warp_k = threadIdx.x / 32 % C.warps_k;
  }

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
      const int share = (end - begin + x.params.splits - 1) / x.params.splits;
      begin += split() * share;
      end = min(end, begin + share);
    }
    kernel.load_q();
    int ahead = next_live(begin, end);
    int tile = ahead;
#pragma unroll
    for (int slot = 0; slot < C.stages - 1; ++slot) {
      if (ahead < end) kernel.load_tile(ahead, stage_of(slot));
      ptx::cp_async_commit();
      ahead = next_live(ahead + 1, end);
    }
    int slot = 0;
    for (bool first = true; tile < end; tile = next_live(tile + 1, end), first = false) {
      ptx::cp_async_wait<C.stages - 2>();
      kernel.arrive(tile, stage_of(slot));
      if (first) kernel.take_q();
      if (ahead < end) kernel.load_tile(ahead, stage_of(slot == 0 ? C.stages - 1 : slot - 1));
      ptx::cp_async_commit();
      ahead = next_live(ahead + 1, end);
      // Above the diagonal the upper warps have nothing to do.
      const int j0 = tile * C.block_k + warp_k * kKeys;
      if (j0 < warp.end && j0 + kKeys > warp.begin) kernel.compute(j0, stage_of(slot));
      slot = slot == C.stages - 1 ? 0 : slot + 1;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // results go where Q was: every copy has landed, also when there was no tile
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        l[mt][r] += __shfl_xor_sync(~0u, l[mt][r], 1);
        l[mt][r] += __shfl_xor_sync(~0u, l[mt][r], 2);
      }
  }

  // The lane's first row; its others are 8, 16 and 24 further.
  __device__ int first_row() const { return work.first + warp_q * C.warp_rows + lane / 4; }
  __device__ int split() const { return int(blockIdx.x % uint32_t(x.params.splits)); }
  __device__ uint32_t stage_of(int slot) const {
    return base + Plan::kQ + Plan::kScales + slot * Plan::kStage;
  }

  // The mask's tile: rows one chunk longer than their data, so that those that a warp reads at once
  // lie on different banks, at offsets that are known when compiling.
  static constexpr int kMaskChunks = C.block_k * element_bytes(P.mask) / kChunk;
  static constexpr int kMaskRow = (kMaskChunks + 1) * kChunk;

  __device__ void load_mask(int j0, uint32_t smem) {
    constexpr int kSize = element_bytes(P.mask), kPasses = C.block_q() * kMaskChunks / kThreads;
    const View4& mask = x.params.mask;
    const int thread = int(ptx::opaque(threadIdx.x));
    const uint8_t* from = static_cast<const uint8_t*>(mask.data) +
                          (work.b * mask.stride[0] + work.h * mask.stride[1] + j0) * kSize;
    if (j0 + C.block_k <= work.s.sk && work.first + C.block_q() <= work.rows) {
#pragma unroll
      for (int n = 0; n < kPasses; ++n) {
        const int at = n * kThreads + thread, row = at / kMaskChunks, chunk = at % kMaskChunks;
        ptx::cp_async_16(smem + row * kMaskRow + chunk * kChunk,
                         from + (work.first + row) * mask.stride[2] * kSize + chunk * kChunk,
                         kChunk);
      }
      return;
    }
#pragma unroll 1
    for (int n = 0; n < kPasses; ++n) {
      const int at = n * kThreads + thread, row = at / kMaskChunks, chunk = at % kMaskChunks;
      const int left = (int(work.s.sk) - j0) * kSize - chunk * kChunk;  // bytes to the row's end
      const int i = work.first + row;
      const int bytes = i < work.rows ? max(0, min(left, kChunk)) : 0;
      ptx::cp_async_16(smem + row * kMaskRow + chunk * kChunk,
                       bytes > 0 ? from + i * mask.stride[2] * kSize + chunk * kChunk : mask.data,
                       bytes);
    }
  }

  // The first tile from `tile` on in which the block mask keeps something; each warp finds it by
  // itself.
  __device__ int next_live(int tile, int end) const {
    if constexpr (P.block_mask_q != 0) {
      const View4& mask = x.params.block_mask;
      const int last = min(work.first + C.block_q(), work.rows) - 1;
      const int q0 = int(work.query(work.first) / p.block_mask_q);
      const int q1 = int(work.query(last) / p.block_mask_q);
      const int heads = C.pack_gqa ? work.group : 1;
      for (; tile < end; ++tile) {
        const int64_t j0 = int64_t(tile) * C.block_k;
        const int64_t j1 = min(j0 + C.block_k, work.s.sk) - 1;
        const int k0 = int(j0 / p.block_mask_k), k1 = int(j1 / p.block_mask_k);
        const int wide = k1 - k0 + 1, count = wide * (q1 - q0 + 1) * heads;
        bool live = false;
        for (int n = lane; n < count; n += 32) {
          const int64_t at =
              work.b * mask.stride[0] + (work.h + n / wide % heads) * mask.stride[1] +
              (q0 + n / wide / heads) * mask.stride[2] + (k0 + n % wide) * mask.stride[3];
          live |= static_cast<const uint8_t*>(mask.data)[at] != 0;
        }
        if (__any_sync(~0u, live)) break;
      }
    }
    return tile;
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

  // Products into scores (in natural units where they are more than a multiple), forbidden keys to
  // -inf. Inside: no key of the tile is out of range.
  template <bool Inside, int N>
  __device__ void score(Scores<N>& s, int j0, uint32_t mask, int key0) {
#pragma unroll
    for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = first_row() + mt * 16 + r * 8;
        const Row<P> row = work.row(p, min(at, work.rows - 1));
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const int j = j0 + n * 8 + lane % 4 * 2;
          float bias[2] = {};
          if constexpr (C.stage_mask && !kMaskFirst) staged_mask(bias, mask, mt, r, key0 + n * 8);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& t = s[mt][n][2 * r + e];
            if (!Inside && !row.in_range(j + e)) {
              t = -kInf;
              continue;
            }
            if constexpr (P.mask != MaskKind::none && !C.stage_mask && !kMaskFirst)
              bias[e] = row.mask(x, j + e);
            if constexpr (kScores)
              t = row.template score<false>(x, t, j + e, bias[e]);
            else if constexpr (kFilters)
              t = row.passes(x, j + e) ? t + bias[e] : -kInf;
          }
        }
      }
  }

  // With care: a key that the mask forbids is -inf, also where NaN + -inf gave NaN.
  template <int N>
  __device__ void forbid(Scores<N>& s, int j0) {
    for (int at = 0; at < kMT * 2; ++at) {
      const int i = first_row() + at * 8;
      const Row<P> row = work.row(p, min(i, work.rows - 1));
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = j0 + n * 8 + lane % 4 * 2 + e;
          const bool forbidden = j < work.s.sk && row.mask(x, j) == -kInf;
#pragma unroll
          for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              if (forbidden && at == mt * 2 + r) s[mt][n][2 * r + e] = -kInf;
        }
    }
  }

  // The accumulators of S begin with what the mask adds, divided by the scale that comes after.
  template <bool Inside, int N>
  __device__ void begin_with_mask(Scores<N>& s, int j0, uint32_t mask, int key0) const {
    const float inverse = 1 / x.params.scale;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int mt = 0; mt < kMT; ++mt)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float bias[2] = {};
          if constexpr (C.stage_mask) {
            staged_mask(bias, mask, mt, r, key0 + n * 8);
          } else {
            const Row<P> row = work.row(p, min(first_row() + mt * 16 + r * 8, work.rows - 1));
            const int j = j0 + n * 8 + lane % 4 * 2;
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (Inside || row.in_range(j + e)) bias[e] = row.mask(x, j + e);
          }
          s[mt][n][2 * r] = bias[0] * inverse;
          s[mt][n][2 * r + 1] = bias[1] * inverse;
        }
  }

  // Two neighbours of the mask's tile.
  __device__ void staged_mask(float (&bias)[2], uint32_t mask, int mt, int r, int key) const {
    constexpr int kSize = element_bytes(P.mask);
    const int row = warp_q * C.warp_rows + lane / 4;
    const uint32_t at = mask + row * kMaskRow + (warp_k * kKeys + lane % 4 * 2) * kSize +
                        (mt * 16 + r * 8) * kMaskRow + key * kSize;
    if constexpr (P.mask == MaskKind::f32) {
      bias[0] = ptx::ld_shared_f32(at);
      bias[1] = ptx::ld_shared_f32(at + 4);
    } else if constexpr (P.mask == MaskKind::boolean) {
      const uint32_t word = ptx::ld_shared_b32(at & ~3u) >> (at & 2) * 8;
      bias[0] = (word & 0xff) != 0 ? 0.f : -kInf;
      bias[1] = (word & 0xff00) != 0 ? 0.f : -kInf;
    } else {
      constexpr DType kType = P.mask == MaskKind::f16 ? DType::f16 : DType::bf16;
      const uint32_t word = ptx::ld_shared_b32(at);
      bias[0] = to_float<kType>(uint16_t(word));
      bias[1] = to_float<kType>(uint16_t(word >> 16));
    }
  }

  // Weights are 2^(s c - shift), where the shift stands for the row's maximum: m c, rounded, so
  // that one fused multiply-add does it. Beyond 2^20 the rounding would matter; there s - m is
  // taken first.
  __device__ float shift_of(float top) const { return __fmul_rn(top, c) - Kernel::kBias; }
  __device__ static bool is_vast(float shift) { return fabsf(shift) > 0x1p20f; }
  // What the sums are off by, as a power of two: sum = 2^residual * sum of 2^((s - m) c).
  __device__ float residual(float top) const {
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
        float alpha = ptx::ex2_approx((old - raised) * c - residual(old) + residual(raised));
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

  __device__ void drop(float& w0, float& w1, int mt, int r, int j) const {
    const int at = min(first_row() + mt * 16 + r * 8, work.rows - 1);
    const Params& a = x.params;
    const Philox4 bits = dropout_bits(a.dropout_seed, a.dropout_offset, work.b, work.head(at),
                                      p.heads_q, work.query(at), j / 4);
    const uint32_t threshold = dropout_threshold(a.dropout_p);
    if (((j & 2) != 0 ? bits.word[2] : bits.word[0]) < threshold) w0 = 0;
    if (((j & 2) != 0 ? bits.word[3] : bits.word[1]) < threshold) w1 = 0;
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
    const PartOf<P> part(part_memory<P, C>(p, x.params), p, x.params.splits);
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

  const KernelArgs& x;
  const Problem& p;
  const Work<P, C>& work;
  const uint32_t base;  // of shared memory
  int lane, warp_q, warp_k;
  const float c;  // scores to powers of two
  bool careful = false;
  Span block, warp;
  float m[kMT][2], l[kMT][2];  // maximum and sum of each row
  float o[kMT][kOT][4];
};

}  // namespace attune
