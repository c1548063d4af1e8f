// How the warps of a block pass buffers to each other: rings of slots in shared memory, each slot
// with two mbarriers.
//
//   producer (or copier)                          consumers
//
//   wait_empty: the slot was given back           wait_full: the slot's bytes have arrived
//   ask TMA for a tile (or copy it)   -- full ->  read it, by wgmma or by loads
//   next()                            <- empty -  every warp: one lane arrives on `empty`
//                                                 next()
//
// Each side goes round a ring by itself. `phase` is the parity of its round: a slot is full in
// round n when its barrier `full` has ended phase n, and free for round n when its barrier `empty`
// has ended phase n - 1. The first round finds every slot free, because a new barrier counts as
// having ended a phase of parity 1.
//
//   ring   slots       what                        given back
//   q      q_buffers   Q of the block's rows       16-bit: by a warpgroup, when O, which is stored
//                                                  through the same memory, has left it;
//                                                  fp32: by every warp, after the last Q K^T
//   k      stages      a tile of K, and of a mask  by every warp
//                      that is staged
//   v      stages      a tile of V                 by every warp
//   tile   1           the next tile of rows,      by every warp that reads it
//                      dynamic schedule
#pragma once

#include "../ptx/bar.h"
#include "../ptx/mbarrier.h"
#include "../ptx/memory.h"
#include "config.h"

namespace attune {

// Named barriers, from these numbers on one for each warpgroup; the last one is of all consumers.
constexpr int kTurnBarrier = 1, kStoreBarrier = kTurnBarrier + kMostWarpgroups;
constexpr int kRecordBarrier = kStoreBarrier + kMostWarpgroups;

// One side's place in a ring: the slot that comes next, and the parity of the round.
template <int Slots>
struct Ring {
  int at = 0;
  uint32_t phase = 0;

  __device__ void next() {
    if (++at == Slots) at = 0, phase ^= 1;
  }
};

// Shared-memory addresses of an mbarrier for each slot: by its number, or the one that comes next.
struct SlotBarriers {
  uint32_t first;
  __device__ uint32_t operator[](int slot) const { return first + kBarrierBytes * slot; }
  template <int Slots>
  __device__ uint32_t operator[](const Ring<Slots>& ring) const {
    return first + kBarrierBytes * ring.at;
  }
};

struct RingBarriers {
  SlotBarriers full, empty;

  template <int Slots>
  __device__ void wait_full(const Ring<Slots>& ring) const {
    ptx::mbarrier_try_wait_parity(full[ring], ring.phase);
  }
  template <int Slots>
  __device__ void wait_empty(const Ring<Slots>& ring) const {
    ptx::mbarrier_try_wait_parity(empty[ring], ring.phase ^ 1);
  }
};

// Shared-memory addresses of what WgmmaControl names.
struct Control {
  static constexpr WgmmaControl kAt = wgmma_control();
  RingBarriers q, k, v, tile_ring;
  uint32_t tile, any_record, first_passed, records, notes;

  __device__ explicit Control(uint32_t at)
      : q{{at + kAt.q_full}, {at + kAt.q_empty}},
        k{{at + kAt.k_full}, {at + kAt.k_empty}},
        v{{at + kAt.v_full}, {at + kAt.v_empty}},
        tile_ring{{at + kAt.tile_full}, {at + kAt.tile_empty}},
        tile(at + kAt.tile),
        any_record(at + kAt.any_record),
        first_passed(at + kAt.first_passed),
        records(at + kAt.records),
        notes(at + kAt.bytes) {}

  // The word of the block's nth tile and a warpgroup.
  __device__ uint32_t record(uint32_t nth, int warpgroup) const {
    return records + kRecordBytes * nth + uint32_t(kWordBytes * warpgroup);
  }
  // What any warpgroup recorded of the nth tile.
  template <int Warpgroups>
  __device__ uint32_t recorded(uint32_t nth) const {
    uint32_t any = 0;
#pragma unroll
    for (int w = 0; w < Warpgroups; ++w) any |= ptx::ld_shared_b32(record(nth, w));
    return any;
  }

  // fp32: what goes with a stage's tile of K, and with that of V.
  __device__ uint32_t k_note(int stage) const { return notes + uint32_t(2 * kSplitNote * stage); }
  __device__ uint32_t v_note(int stage) const { return k_note(stage) + kSplitNote; }

  // By all threads. A Q buffer is given back by `q_arrivals` arrivals.
  template <WgmmaConfig C>
  __device__ void begin(int q_arrivals) const {
    constexpr int kProducers = C.producer_warps(), kConsumers = 4 * C.warpgroups;  // warps
    if (threadIdx.x == 0) {
      begin_ring<C.q_buffers>(q, kProducers, q_arrivals);
      for (int i = 0; i < C.stages; ++i) {
        ptx::mbarrier_init(k.full[i], kProducers);
        ptx::mbarrier_init(k.empty[i], kConsumers);
        ptx::mbarrier_init(v.full[i], kProducers);
        ptx::mbarrier_init(v.empty[i], kConsumers);
      }
      ptx::st_shared_b32(any_record, 0);
      ptx::mbarrier_init(first_passed, kConsumers);
      begin_ring<1>(tile_ring, 1, kConsumers + (C.tma() ? 0 : kProducers));
      ptx::fence_mbarrier_init();
    }
    for (int i = int(threadIdx.x); i < kMostTiles * kMostWarpgroups; i += C.threads())
      ptx::st_shared_b32(records + kWordBytes * i, 0);
  }

 private:
  template <int Slots>
  __device__ static void begin_ring(const RingBarriers& bars, int full, int empty) {
    for (int i = 0; i < Slots; ++i) {
      ptx::mbarrier_init(bars.full[i], full);
      ptx::mbarrier_init(bars.empty[i], empty);
    }
  }
};

}  // namespace attune
