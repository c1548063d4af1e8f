// The second pass of a block whose rows keep their first maximum: tiles of rows that some warpgroup
// recorded, because a row grew past all room, are walked over again with maxima that grow. The
// producer brings their tiles once more. It is rare: so the same step for every tile and one
// product after the other, which is little to compile.
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
class SecondPass {
  static_assert(!C.stages_mask());  // first maxima have scores that are products

 public:
  __device__ SecondPass(const KernelArgs& args, const TensorMaps& m, const Problem& problem,
                        const Control& b, uint32_t smem, int warpgroup)
      : consumer(args, m, problem, b, smem, warpgroup) {}
  __device__ void repair() { consumer.repair(); }

  // All warpgroups together, since they share the keys.
  __device__ void run(const Place<Fast>& from) {
    consumer.rows.count = from.count;
    if (ptx::ld_shared_b32(consumer.rows.bars.any_record) == 0) return;
    consumer.rows.k_ring = from.k, consumer.rows.v_ring = from.v, consumer.rows.q_ring = from.q;
    // What is written now comes after it.
    if (consumer.rows.warp == 0 && consumer.rows.lane == 0) ptx::cp_async_bulk_wait_group();
    for (consumer.rows.count = 0; consumer.rows.count < from.count; ++consumer.rows.count) {
      const uint32_t record =
          consumer.rows.bars.template recorded<C.warpgroups>(consumer.rows.count);
      if (record == 0) continue;
      consumer.rows.tile = record - 1;
      consumer.rows.enter(Work<P, C>(consumer.rows.p, consumer.rows.x, consumer.rows.tile));
      consumer.rows.wait_for_rows([] {});
      consumer.hand_back_q();
      walk();
      const uint32_t bar = consumer.rows.bars.q.empty[consumer.rows.q_ring];
      consumer.rows.q_ring.next();
      // Every one has read the records.
      ptx::bar_sync(kRecordBarrier, 128 * C.warpgroups);
      ptx::st_shared_b32(consumer.rows.bars.record(consumer.rows.count, consumer.rows.wg), 0);
      // And its own is gone before it is written again.
      ptx::bar_sync(kStoreBarrier + consumer.rows.wg, 128);
      consumer.write(consumer.rows.tile, consumer.rows.count, consumer.rows.q);
      consumer.rows.owed = bar;
      if constexpr (C.q_buffers == 1) consumer.hand_back_q();
    }
  }

 private:
  __device__ void walk() {
#pragma unroll
    for (float& sum : consumer.o) sum = 0;
    consumer.m[0] = consumer.m[1] = -kInf, consumer.l[0] = consumer.l[1] = 0;
    consumer.rows.pass_over_v();
#pragma unroll 1
    for (;;) {
      const int j0 = (consumer.rows.n - 1) * C.block_k;
      consumer.rows.bars.k.wait_full(consumer.rows.k_ring);
      ptx::wgmma_fence();
      consumer.issue_qk();
      ptx::wgmma_wait_group<0>();
      ptx::pin(consumer.s);
      consumer.release_k();
      consumer.template score<true>(j0);
      consumer.template softmax<false, true, true, false>(j0, 0);
      consumer.rows.bars.v.wait_full(consumer.rows.v_ring);
      ptx::wgmma_fence();
      consumer.issue_pv();
      ptx::wgmma_wait_group<0>();
      ptx::pin(consumer.o);
      consumer.rows.release(consumer.rows.bars.v.empty[consumer.rows.v_ring]);
      consumer.rows.next_tile();
      if (consumer.rows.n <= consumer.rows.begin()) break;
      consumer.rows.v_ring.next();
    }
    consumer.rows.pass_over_rest();
    consumer.rows.end_v(consumer.rows.rest);
  }

  Consumer<P, C> consumer;
};

}  // namespace attune
