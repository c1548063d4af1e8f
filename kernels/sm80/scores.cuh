// What lies between the two products of a tensor-core kernel: a block's place, and what masks and
// other features make of a tile of scores.
#pragma once

#include "../tile/work.h"
#include "combine.cuh"
#include "tile.cuh"

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

template <Problem P, MmaConfig C>
class MmaScores {
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

  __device__ MmaScores(const KernelArgs& args, const Problem& problem, const Work<P, C>& w,
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

  // The lane's first row; its others are 8, 16 and 24 further.
  __device__ int first_row() const { return work.first + warp_q * C.warp_rows + lane / 4; }
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
        ptx::cp_async_cg(smem + row * kMaskRow + chunk * kChunk,
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
      ptx::cp_async_cg(smem + row * kMaskRow + chunk * kChunk,
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
            if (P.mask != MaskKind::none && !C.stage_mask && !kMaskFirst)
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
  // Rounded towards zero, which ends at the largest number and not at infinity: a row that a mask
  // fills with the lowest number of its type still has keys.
  template <bool Inside, int N>
  __device__ void begin_with_mask(Scores<N>& s, int j0, uint32_t mask, int key0) const {
    const float inverse = __frcp_rz(x.params.scale);
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
          s[mt][n][2 * r] = __fmul_rz(bias[0], inverse);
          s[mt][n][2 * r + 1] = __fmul_rz(bias[1], inverse);
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
    } else {
      const uint32_t word =
          kSize == 1 ? ptx::ld_shared_b32(at & ~3u) >> (at & 2) * 8 : ptx::ld_shared_b32(at);
      bias[0] = mask_of_bits<P.mask>(word);
      bias[1] = mask_of_bits<P.mask>(word >> 8 * kSize);
    }
  }

  // Dropout, for two neighbouring weights.
  __device__ void drop(float& w0, float& w1, int mt, int r, int j) const {
    const int at = min(first_row() + mt * 16 + r * 8, work.rows - 1);
    const Params& a = x.params;
    const Philox4 bits = dropout_bits(a.dropout_seed, a.dropout_offset, work.b, work.head(at),
                                      p.heads_q, work.query(at), j / 4);
    const uint32_t threshold = dropout_threshold(a.dropout_p);
    if (((j & 2) != 0 ? bits.word[2] : bits.word[0]) < threshold) w0 = 0;
    if (((j & 2) != 0 ? bits.word[3] : bits.word[1]) < threshold) w1 = 0;
  }

  const KernelArgs& x;
  const Problem& p;
  const Work<P, C>& work;
  const uint32_t base;  // of shared memory
  int lane, warp_q, warp_k;
  const float c;  // scores to powers of two
  bool careful = false;
};

}  // namespace attune
