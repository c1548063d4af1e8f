// What a warpgroup with first maxima recorded because some row grew past all room, walked over
// again with maxima that grow. Rare, so the same step for every tile and one product after the
// other: that is little to compile.
#pragma once

#include "consumer.cuh"

namespace attune {

// The same tiles and buffers.
constexpr WgmmaConfig plain_walk(WgmmaConfig c) {
  c.maxima = RowMaxima::exact;
  c.flat = false;
  c.turn = kNoTurn;
  return c;
}

template <Problem P, WgmmaConfig Fast, WgmmaConfig C = plain_walk(Fast)>
class Again : Consumer<P, C> {
  static_assert(!C.stages_mask());  // first maxima have scores that are products
  using Base = Consumer<P, C>;
  using Base::bars, Base::count, Base::k_ring, Base::l, Base::lane, Base::m, Base::n, Base::o,
      Base::owed, Base::p, Base::q, Base::q_ring, Base::s, Base::tile, Base::v_ring, Base::warp,
      Base::wg, Base::x;

 public:
  using Base::Base, Base::repair;

  // All warpgroups together, since they share the keys.
  __device__ void run(const Place<Fast>& from) {
    count = from.count;
    if (ptx::ld_shared_b32(bars.any_record) == 0) return;
    k_ring = from.k, v_ring = from.v, q_ring = from.q;
    if (warp == 0 && lane == 0)
      ptx::cp_async_bulk_wait_group();  // what is written now comes after it
    for (count = 0; count < from.count; ++count) {
      const uint32_t record = bars.recorded<C.warpgroups>(count);
      if (record == 0) continue;
      tile = record - 1;
      Base::enter(Work<P, C>(p, x, tile));
      Base::wait_for_rows([] {});
      Base::hand_back_q();
      walk();
      const uint32_t bar = bars.q.empty[q_ring];
      q_ring.next();
      ptx::bar_sync(kRecordBarrier, 128 * C.warpgroups);  // every one has read the records
      ptx::st_shared_b32(bars.record(count, wg), 0);
      ptx::bar_sync(kStoreBarrier + wg, 128);  // and its own is gone before it is written again
      Base::write(tile, count, q);
      owed = bar;
      if constexpr (C.q_buffers == 1) Base::hand_back_q();
    }
  }

 private:
  __device__ void walk() {
#pragma unroll
    for (float& sum : o) sum = 0;
    m[0] = m[1] = -kInf, l[0] = l[1] = 0;
    Base::pass_over_v();
#pragma unroll 1
    for (;;) {
      const int j0 = (n - 1) * C.block_k;
      bars.k.wait_full(k_ring);
      ptx::wgmma_fence();
      Base::issue_qk();
      ptx::wgmma_wait_group<0>();
      ptx::pin(s);
      Base::release_k();
      Base::template score<true>(j0);
      Base::template softmax<false, true, true, false>(j0, 0);
      bars.v.wait_full(v_ring);
      ptx::wgmma_fence();
      Base::issue_pv();
      ptx::wgmma_wait_group<0>();
      ptx::pin(o);
      Base::release(bars.v.empty[v_ring]);
      Base::next_tile();
      if (n <= Base::begin()) break;
      v_ring.next();
    }
    Base::pass_over_rest();
    Base::end_v(Base::rest);
  }
};

}  // namespace attune
