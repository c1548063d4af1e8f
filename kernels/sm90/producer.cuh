// One thread that asks for tiles of Q, K, V and mask, as buffers become free. For fp32 K and V come
// from where the pre-pass has left them, and Q as it is.
#pragma once

#include "../ptx/tma.h"
#include "ring.cuh"
#include "schedule.cuh"
#include "split.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
class Producer {
 public:
  __device__ Producer(const KernelArgs& args, const TensorMaps& m, const Problem& problem,
                      const Control& b, uint32_t smem)
      : x(args), maps(m), p(problem), bars(b), base(smem) {}

  __device__ void run() {
    Ring<C.stages> ring;
    Ring<C.q_buffers> q;
    uint32_t tile_phase = 1, count = 0;
    for (;; ++count) {
      uint32_t tile;
      if constexpr (C.schedule == kDynamic) {
        tile = count == kMostTiles ? kNoMoreTiles : next_of_all(count);
        if (tile >= x.blocks.tiles) tile = kNoMoreTiles;
        ptx::mbarrier_try_wait_parity(bars.tile_ring.empty[0], tile_phase);
        ptx::st_shared_b32(bars.tile, tile);
        ptx::mbarrier_arrive(bars.tile_ring.full[0]);
        tile_phase ^= 1;
      } else {
        tile = nth_tile<P, C>(p, x, count);
      }
      if (tile == kNoMoreTiles) break;
      if (tile != kNoTile) load(Work<P, C>(p, x, tile), tile, ring, q);
      if constexpr (C.schedule == kGrid) break;
    }
    if constexpr (C.maxima == RowMaxima::first) {  // and once more what the consumers found wanting
      ptx::mbarrier_try_wait_parity(bars.first_passed, 0);
      if (ptx::ld_shared_b32(bars.any_record) == 0) return;
      for (uint32_t nth = 0; nth <= count && nth < kMostTiles; ++nth)
        if (const uint32_t record = bars.recorded<C.warpgroups>(nth); record != 0)
          load(Work<P, C>(p, x, record - 1), record - 1, ring, q);
    }
  }

 private:
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr int kPanels = panels_of(P.dim), kPanelsV = panels_of(P.dim_v);
  static constexpr MaskTile kMask = mask_tile(C, P);
  static constexpr bool kSplit = P.dtype == DType::f32;

  __device__ void load(const Work<P, C>& work, uint32_t tile, Ring<C.stages>& ring,
                       Ring<C.q_buffers>& q) {
    if (work.first >= work.rows) return;  // past the end of a shorter sequence
    const Tiles<P, C> tiles(p, work);
    bool first = true;
    if (kSplit && !split_done) {  // the first Q does not wait for the pre-pass
      load_q(work, q);
      wait_for_split();
      first = false;
    }
#pragma unroll 1
    for (int n = tiles.first_live(x, p, work, 0, 1); n > tiles.begin;
         n = tiles.live(x, p, work, n - 1, 0, 1)) {
      bars.k.wait_empty(ring);
      load_k(work, n - 1, ring.at);
      if (first) load_q(work, q);
      first = false;
      bars.v.wait_empty(ring);
      load_v(work, n - 1, ring.at);
      ring.next();
    }
  }

  // The next tile of rows that nobody has. fp32: a block's first is its own, so that Q comes while
  // the pre-pass, which sets the counter, still runs.
  __device__ uint32_t next_of_all(uint32_t count) {
    uint32_t* counter = static_cast<uint32_t*>(x.params.workspace);
    if (!kSplit) return atomicAdd(counter, 1u);
    if (count == 0) return blockIdx.x;
    wait_for_split();
    return gridDim.x + atomicAdd(counter, 1u);
  }

  // fp32: the pre-pass is done.
  __device__ void wait_for_split() {
    if (split_done) return;
    ptx::griddepcontrol_wait();
    ptx::fence_proxy_async_global();
    split_done = true;
  }

  __device__ void load_k(const Work<P, C>& work, int n, int stage) {
    const uint32_t to = base + kLayout.k_at + stage * kLayout.k, bar = bars.k.full[stage];
    if constexpr (kSplit) {
      const SplitMemory<P, C> from(p, x.params);
      const int64_t tile = from.index(p, work.b, work.hk, n);
      ptx::mbarrier_arrive_expect_tx(bar, kLayout.k + kSplitNote);
      ptx::cp_async_bulk_shared_global(to, from.k(tile), kLayout.k, bar);
      ptx::cp_async_bulk_shared_global(bars.k_note(stage), from.k_note(tile), kSplitNote, bar);
    } else {
      ptx::mbarrier_arrive_expect_tx(bar, kPanels * panel_bytes(C.block_k) + mask_bytes());
      load_keys<kPanels>(to, &maps.k, bar, int(work.s.k0) + n * C.block_k, work);
      if (C.stages_mask()) load_mask(work, n * C.block_k, stage);
    }
  }

  __device__ void load_v(const Work<P, C>& work, int n, int stage) {
    const uint32_t to = base + kLayout.v_at + stage * kLayout.v, bar = bars.v.full[stage];
    if constexpr (kSplit) {
      const SplitMemory<P, C> from(p, x.params);
      const int64_t tile = from.index(p, work.b, work.hk, n);
      ptx::mbarrier_arrive_expect_tx(bar, kLayout.v + kSplitNote);
      ptx::cp_async_bulk_shared_global(to, from.v(tile), kLayout.v, bar);
      ptx::cp_async_bulk_shared_global(bars.v_note(stage), from.v_note(tile), kSplitNote, bar);
    } else {
      ptx::mbarrier_arrive_expect_tx(bar, kPanelsV * panel_bytes(C.block_k));
      load_keys<kPanelsV>(to, &maps.v, bar, int(work.s.k0) + n * C.block_k, work);
    }
  }

  // A tile of K or V.
  template <int Panels>
  __device__ void load_keys(uint32_t to, const TensorMap* map, uint32_t full, int row,
                            const Work<P, C>& work) {
#pragma unroll
    for (int d = 0; d < Panels; ++d)
      ptx::cp_async_bulk_tensor_4d_shared_global(to + d * panel_bytes(C.block_k), map, full,
                                                 d * kPanel, row, work.hk, batch(work));
  }

  // fp32: in panels of as many bytes, so of half as many columns.
  __device__ void load_q(const Work<P, C>& work, Ring<C.q_buffers>& q) {
    constexpr int kColumns = kSplit ? kPanel / 2 : kPanel;
    constexpr int kAll = (P.dim + kColumns - 1) / kColumns;
    bars.q.wait_empty(q);
    ptx::mbarrier_arrive_expect_tx(bars.q.full[q], C.warpgroups * kAll * panel_bytes(64));
#pragma unroll
    for (int w = 0; w < C.warpgroups; ++w)
#pragma unroll
      for (int d = 0; d < kAll; ++d) {
        const uint32_t to =
            base + q.at * kLayout.q + w * (kLayout.q / C.warpgroups) + d * panel_bytes(64);
        const uint32_t full = bars.q.full[q];
        const int row = work.first + w * 64;
        if constexpr (C.pack_gqa)
          ptx::cp_async_bulk_tensor_5d_shared_global(to, &maps.q, full, d * kColumns, 0,
                                                     int(work.s.q0) + work.query(row), work.hk,
                                                     batch(work));
        else
          ptx::cp_async_bulk_tensor_4d_shared_global(to, &maps.q, full, d * kColumns,
                                                     int(work.s.q0) + row, work.h, batch(work));
      }
    q.next();
  }

  // A mask that is the same for all rows comes as one row.
  __device__ int mask_bytes() const {
    if (!C.stages_mask()) return 0;
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
        ptx::cp_async_bulk_tensor_4d_shared_global(
            base + kLayout.m_at + stage * kLayout.m + w * (kLayout.m / C.warpgroups) +
                d * 64 * kMask.pitch,
            &maps.mask, bars.k.full[stage], key + d * kMask.keys,
            m.stride[2] == 0 ? 0 : work.first + w * 64, h, b);
  }

  __device__ static int batch(const Work<P, C>& work) { return P.ragged ? 0 : work.b; }

  const KernelArgs& x;
  const TensorMaps& maps;
  const Problem& p;
  const Control& bars;
  const uint32_t base;
  bool split_done = false;
};

}  // namespace attune
