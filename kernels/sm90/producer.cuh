// One thread that asks for tiles of Q, K, V and mask, as buffers become free.
#pragma once

#include "../ptx/hopper.h"
#include "../ptx/memory.h"
#include "schedule.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
class Producer {
 public:
  __device__ Producer(const KernelArgs& args, const TensorMaps& m, const Problem& problem,
                      const Barriers& b, uint32_t smem)
      : x(args), maps(m), p(problem), bars(b), base(smem) {}

  __device__ void run() {
    Ring<C.stages> ring;
    Ring<C.q_buffers> q;
    uint32_t tile_phase = 1;
    for (uint32_t count = 0;; ++count) {
      uint32_t tile;
      if constexpr (C.schedule == kDynamic) {
        tile = count == kMostTiles ? kNoMoreTiles
                                   : atomicAdd(static_cast<uint32_t*>(x.params.workspace), 1u);
        if (tile >= x.params.tiles) tile = kNoMoreTiles;
        ptx::mbarrier_wait(bars.tile_empty, tile_phase);
        ptx::st_shared_b32(bars.tile, tile);
        ptx::mbarrier_arrive(bars.tile_full);
        tile_phase ^= 1;
      } else {
        tile = nth_tile<P, C>(p, x.params, count);
      }
      if (tile == kNoMoreTiles) break;
      if (tile != kNoTile) load(Work<P, C>(p, x.params, tile), tile, ring, q);
      if constexpr (C.schedule == kGrid) break;
    }
  }

 private:
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr int kPanels = panels_of(P.dim), kPanelsV = panels_of(P.dim_v);
  static constexpr MaskTile kMask = mask_tile(C, P);

  __device__ void load(const Work<P, C>& work, uint32_t tile, Ring<C.stages>& ring,
                       Ring<C.q_buffers>& q) {
    if (work.first >= work.rows) return;  // past the end of a shorter sequence
    const Tiles<P, C> tiles(p, work);
    bool first = true;
#pragma unroll 1
    for (int n = tiles.end - 1; n >= tiles.begin; --n) {
      const int row = int(work.s.k0) + n * C.block_k;
      ptx::mbarrier_wait(bars.k_empty + 8 * ring.at, ring.phase ^ 1);
      ptx::mbarrier_expect(bars.k_full + 8 * ring.at,
                           kPanels * panel_bytes(C.block_k) + mask_bytes());
      load_keys<kPanels>(base + kLayout.k_at + ring.at * kLayout.k, &maps.k,
                         bars.k_full + 8 * ring.at, row, work);
      if constexpr (C.stage_mask) load_mask(work, n * C.block_k, ring.at);
      if (first) load_q(work, q);
      first = false;
      ptx::mbarrier_wait(bars.v_empty + 8 * ring.at, ring.phase ^ 1);
      ptx::mbarrier_expect(bars.v_full + 8 * ring.at, kPanelsV * panel_bytes(C.block_k));
      load_keys<kPanelsV>(base + kLayout.v_at + ring.at * kLayout.v, &maps.v,
                          bars.v_full + 8 * ring.at, row, work);
      ring.next();
    }
  }

  // A tile of K or V; in a cluster this block's half of its rows, for both blocks.
  template <int Panels>
  __device__ void load_keys(uint32_t to, const TensorMap* map, uint32_t full, int row,
                            const Work<P, C>& work) {
#pragma unroll
    for (int d = 0; d < Panels; ++d) {
      const uint32_t at = to + d * panel_bytes(C.block_k);
      if constexpr (C.cluster == 1) {
        ptx::tma_load(at, map, full, d * kPanel, row, work.hk, batch(work));
      } else {
        const int half = int(ptx::cluster_rank()) * (C.block_k / 2);
        ptx::tma_load_multicast(at + half * 128, map, full, d * kPanel, row + half, work.hk,
                                batch(work), 3);
      }
    }
  }

  __device__ void load_q(const Work<P, C>& work, Ring<C.q_buffers>& q) {
    ptx::mbarrier_wait(bars.q_empty + 8 * q.at, q.phase ^ 1);
    ptx::mbarrier_expect(bars.q_full + 8 * q.at, C.warpgroups * kPanels * panel_bytes(64));
#pragma unroll
    for (int w = 0; w < C.warpgroups; ++w)
#pragma unroll
      for (int d = 0; d < kPanels; ++d)
        ptx::tma_load(
            base + q.at * kLayout.q + w * (kLayout.q / C.warpgroups) + d * panel_bytes(64), &maps.q,
            bars.q_full + 8 * q.at, d * kPanel, int(work.s.q0) + work.first + w * 64, work.h,
            batch(work));
    q.next();
  }

  // A mask that is the same for all rows comes as one row.
  __device__ int mask_bytes() const {
    if constexpr (!C.stage_mask) return 0;
    return x.params.mask.stride[2] == 0 ? kLayout.m / 64 : kLayout.m;
  }

  // The mask's tile comes and goes with that of K. Where it broadcasts, the map has one of a kind.
  __device__ void load_mask(const Work<P, C>& work, int key, int stage) {
    const View4& m = x.params.mask;
    const int h = m.stride[1] == 0 ? 0 : work.h, b = m.stride[0] == 0 ? 0 : work.b;
#pragma unroll
    for (int w = 0; w < C.warpgroups; ++w)
#pragma unroll
      for (int d = 0; d < kMask.panels; ++d)
        ptx::tma_load(base + kLayout.m_at + stage * kLayout.m + w * (kLayout.m / C.warpgroups) +
                          d * 64 * kMask.pitch,
                      &maps.mask, bars.k_full + 8 * stage, key + d * kMask.keys,
                      m.stride[2] == 0 ? 0 : work.first + w * 64, h, b);
  }

  __device__ static int batch(const Work<P, C>& work) { return P.ragged ? 0 : work.b; }

  const KernelArgs& x;
  const TensorMaps& maps;
  const Problem& p;
  const Barriers& bars;
  const uint32_t base;
};

}  // namespace attune
