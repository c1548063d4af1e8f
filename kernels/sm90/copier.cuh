// Four warps that copy tiles of Q, K and V themselves, where TMA cannot reach the tensors: rows
// that start anywhere, strides of 0 or below, any head dimension. What they leave in shared memory
// is what TMA would have left there.
#pragma once

#include "../ptx/tma.h"
#include "../tile/number.h"
#include "ring.cuh"
#include "schedule.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
class Copier {
 public:
  __device__ Copier(const KernelArgs& args, const Problem& problem, const Control& b, uint32_t smem)
      : x(args), p(problem), bars(b), base(smem) {}

  __device__ void run() {
    for (uint32_t count = 0;; ++count) {
      const uint32_t tile = next_tile(count);
      if (tile == kNoMoreTiles) break;
      if (tile != kNoTile) load(Work<P, C>(p, x, tile));
      if constexpr (C.schedule == kGrid) break;
    }
    announce_last();
  }

 private:
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr bool kAsync = C.copy > 2;

  // Of a dynamic schedule's tiles the first thread takes one and tells all others of the block.
  __device__ uint32_t next_tile(uint32_t count) {
    if constexpr (C.schedule != kDynamic) return nth_tile<P, C>(p, x, count);
    if (__shfl_sync(~0u, threadIdx.x / 32, 0) == 0) {
      uint32_t tile = kNoMoreTiles;
      if (threadIdx.x == 0 && count < kMostTiles)
        tile = atomicAdd(static_cast<uint32_t*>(x.params.workspace), 1u);
      wait(bars.tile_ring.empty[0], tile_phase ^ 1);
      if (threadIdx.x == 0) {
        ptx::st_shared_b32(bars.tile, tile < x.blocks.tiles ? tile : kNoMoreTiles);
        ptx::mbarrier_arrive(bars.tile_ring.full[0]);
      }
      __syncwarp();
    }
    wait(bars.tile_ring.full[0], tile_phase);
    const uint32_t tile = ptx::ld_shared_b32(bars.tile);
    arrive(bars.tile_ring.empty[0]);
    tile_phase ^= 1;
    return tile;
  }

  __device__ void load(const Work<P, C>& work) {
    if (work.first >= work.rows) return;  // past the end of a shorter sequence
    const Tiles<P, C> tiles(p, work);
    const Params& a = x.params;
    const int lane = int(threadIdx.x % 32), last = tiles.first_live(x, p, work, lane, 32);
#pragma unroll 1
    for (int n = last; n > tiles.begin; n = tiles.live(x, p, work, n - 1, lane, 32)) {
      const int64_t row = work.s.k0 + (n - 1) * C.block_k;
      const int valid = int(work.s.sk) - (n - 1) * C.block_k;
      wait(bars.k.empty[ring], ring.phase ^ 1);
      copy<C.block_k, P.dim, round_up(P.dim, 16)>(base + kLayout.k_at + ring.at * kLayout.k,
                                                  row_of<P.dtype>(a.k, work.b, work.hk, row),
                                                  a.k.stride_s, valid);
      announce(bars.k.full[ring]);
      if (n == last) load_q(work);
      wait(bars.v.empty[ring], ring.phase ^ 1);
      copy<C.block_k, P.dim_v, round_up(P.dim_v, 8)>(base + kLayout.v_at + ring.at * kLayout.v,
                                                     row_of<P.dtype>(a.v, work.b, work.hk, row),
                                                     a.v.stride_s, valid);
      announce(bars.v.full[ring]);
      ring.next();
    }
  }

  __device__ void load_q(const Work<P, C>& work) {
    wait(bars.q.empty[q_ring], q_ring.phase ^ 1);
#pragma unroll 1
    for (int w = 0; w < C.warpgroups; ++w) {
      const int first = work.first + w * 64;
      copy<64, P.dim, round_up(P.dim, 16)>(
          base + q_ring.at * kLayout.q + w * (kLayout.q / C.warpgroups),
          row_of<P.dtype>(x.params.q, work.b, work.h, work.s.q0 + first), x.params.q.stride_s,
          work.rows - first);
    }
    announce(bars.q.full[q_ring]);
    q_ring.next();
  }

  // Rows [0, valid) of Dim columns into panels; further rows become zeros, and so do columns up to
  // Padded: no product looks at more. A thread stays in its column of the panels, so that what the
  // threads read together are whole rows of them. Hardly unrolled: registers are few.
  template <int Rows, int Dim, int Padded>
  __device__ void copy(uint32_t to, const uint16_t* rows, int64_t stride, int valid) {
    constexpr int kPiece = kAsync ? C.copy : 16;  // bytes that a thread writes at once
    constexpr int kPass = kPiece;                 // rows that all threads do
    const int byte = int(threadIdx.x % (128 / kPiece)) * kPiece;
    int row = int(threadIdx.x) / (128 / kPiece);
    const uint16_t* from = rows + row * stride + byte / 2;
#pragma unroll 1
    for (; row < Rows; row += kPass, from += kPass * stride) {
      const uint32_t at = to + uint32_t(row * 128 + (byte ^ row % 8 * 16));
      const bool inside = row < valid;
#pragma unroll(kAsync ? panels_of(Dim) : 1)
      for (int panel = 0; panel < panels_of(Dim); ++panel) {
        const int column = panel * kPanel + byte / 2;
        if (Padded < (panel + 1) * kPanel && column >= Padded) break;
        const uint32_t there = at + panel * panel_bytes(Rows);
        if constexpr (kAsync) {
          const bool data = inside && (Dim >= (panel + 1) * kPanel || column < Dim);
          ptx::cp_async<kPiece>(there, data ? from + panel * kPanel : rows, data ? kPiece : 0);
        } else {
          ptx::st_shared_v4(there, gather(from + panel * kPanel, inside ? Dim - column : 0));
        }
      }
    }
  }

  // Eight numbers from anywhere, of which the first `count` exist.
  __device__ static uint4 gather(const uint16_t* from, int count) {
    uint32_t word[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t low = 2 * e < count ? from[2 * e] : 0;
      const uint32_t high = 2 * e + 1 < count ? from[2 * e + 1] : 0;
      word[e] = low | high << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
  }

  // ---- what is on its way, and who is told ----

  // Of what was copied in the background the copy before is announced, when it has arrived, while
  // this one is on its way.
  __device__ void announce(uint32_t full) {
    if constexpr (!kAsync) return written(full);
    ptx::cp_async_commit_group();
    if (under_way != 0) {
      ptx::cp_async_wait_group<1>();
      written(under_way);
    }
    under_way = full;
  }
  __device__ void announce_last() {
    if (!kAsync || under_way == 0) return;
    ptx::cp_async_wait_group<0>();
    written(under_way);
    under_way = 0;
  }
  __device__ void written(uint32_t full) {
    ptx::fence_proxy_async_shared();  // by every thread, for what it wrote itself
    arrive(full);
  }
  __device__ static void arrive(uint32_t bar) {  // once a warp
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(bar);
  }
  // Nobody may wait with a tile unannounced: the consumers might wait for that very tile.
  __device__ void wait(uint32_t bar, uint32_t parity) {
    if (kAsync && under_way != 0 && !__all_sync(~0u, ptx::mbarrier_test_wait_parity(bar, parity)))
      announce_last();
    ptx::mbarrier_try_wait_parity(bar, parity);
  }

  const KernelArgs& x;
  const Problem& p;
  const Control& bars;
  const uint32_t base;
  uint32_t under_way = 0;  // the barrier of a copy that was not announced
  uint32_t tile_phase = 0;
  Ring<C.stages> ring;
  Ring<C.q_buffers> q_ring;
};

}  // namespace attune
