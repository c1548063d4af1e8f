// How a warpgroup with 64 query rows goes from rows to rows and over their key tiles, what of these
// the rows may look at, and what is computed again at the end. The same whatever the numbers are;
// products and softmax are the consumers'.
#pragma once

#include "../ptx/opaque.h"
#include "../ptx/wgmma.h"
#include "../tile/naive_row.h"
#include "ring.cuh"
#include "schedule.cuh"

namespace attune {

// How far a warpgroup came: tiles of rows so far, and the buffers that come next.
template <WgmmaConfig C>
struct Place {
  uint32_t count;
  Ring<C.stages> k, v;
  Ring<C.q_buffers> q;
};

template <Problem P, WgmmaConfig C>
struct Rows {
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr bool kFirstMax = C.maxima == RowMaxima::first;
  // A warpgroup leaves out tiles that none of its rows may look at.
  static constexpr bool kSkips = P.block_mask_q == 0;

  __device__ Rows(const KernelArgs& args, const Problem& problem, const Control& b, uint32_t smem,
                  int warpgroup, float score_unit)
      : x(args), p(problem), bars(b), base(smem), wg(warpgroup), unit(score_unit) {
    lane = int(threadIdx.x % 32);
    warp = int(threadIdx.x / 32 % 4);
    k_matrix = ptx::wgmma_matrix(base + kLayout.k_at, 16);
    v_matrix = ptx::wgmma_matrix(base + kLayout.v_at, panel_bytes(C.block_k));
  }

  // ---- going from rows to rows ----

  // Waits for the next rows' Q, does with it what is to be done, passes over key tiles that none of
  // this warpgroup's rows may look at, and waits for the first K. False: there are no more rows.
  template <class Prepare>
  __device__ bool next_rows(const Prepare& prepare_q) {
    for (;; ++count) {
      if constexpr (C.schedule == kDynamic) {
        ptx::mbarrier_try_wait_parity(bars.tile_ring.full[0], tile_phase);
        // By the lane that says so and no other: what it tells orders its own reads. After the
        // shuffle, when every lane has seen this phase, and none can miss it.
        if (lane == 0) tile = ptx::ld_shared_b32(bars.tile);
        tile = __shfl_sync(~0u, tile, 0);
        if (lane == 0) ptx::mbarrier_arrive(bars.tile_ring.empty[0]);
        tile_phase ^= 1;
      } else {
        tile = nth_tile<P, C>(p, x, count);
      }
      if (tile == kNoMoreTiles) return false;
      if (tile != kNoTile && enter(Work<P, C>(p, x, tile))) break;
      if constexpr (C.schedule == kGrid) return false;
    }
    ++count;
    wait_for_rows(prepare_q);
    return true;
  }

  template <class Prepare>
  __device__ void wait_for_rows(const Prepare& prepare_q) {
    q = base + q_ring.at * kLayout.q + wg * (kLayout.q / C.warpgroups);
    q_matrix = ptx::wgmma_matrix(q, 16);
    bars.q.wait_full(q_ring);
    prepare_q();
    for (int i = 0; i < skipped; ++i, --n)
      pass_over(bars.k.full.first, bars.k.empty.first, &k_ring);
    bars.k.wait_full(k_ring);
  }

  // What of the rows is kept through the walk is no more than the walk needs; the rest is found out
  // anew at the end: a few cycles, against registers. False: past the end of a shorter sequence.
  __device__ bool enter(const Work<P, C>& work) {
    if (work.first >= work.rows) return false;
    tiles = Tiles<P, C>(p, work);
    n = tiles.first_live(x, p, work, lane, 32);
    row0 = work.first + wg * 64;
    keys = int(work.s.sk);
    diagonal = int(work.s.shift);
    const int last = min(row0 + 64, work.rows) - 1;
    const Span span = row0 <= last && keys > 0 ? span_of<P, C>(p, work, row0, last) : Span{};
    all_begin = span.all_begin;
    all_end = span.all_end;
    skipped = 0;
    if constexpr (kSkips && (P.causal || P.window())) {
      const int end = max((span.end + C.block_k - 1) / C.block_k, tiles.begin + 1);
      // No more than the ring holds: the producer waits for V to be given back before it goes on,
      // and flat, that of the rows before, from their last tile on, is not given back yet.
      skipped = min(max(tiles.end - end, 0), C.stages - (C.flat ? 1 + rest : 0));
    }
    if constexpr (kSkips && P.window()) {
      const int begin = min(span.begin / C.block_k, tiles.end - skipped - 1);
      rest = min(max(begin - tiles.begin, 0), C.stages - 1);
    }
    return true;
  }

  // By the addresses of the first slot's barriers.
  __device__ void pass_over(uint32_t full, uint32_t empty, Ring<C.stages>* ring) {
    ptx::mbarrier_try_wait_parity(full + kBarrierBytes * ring->at, ring->phase);
    release(empty + kBarrierBytes * ring->at);
    ring->next();
  }

  __device__ void pass_over_v() {
    for (int i = 0; i < skipped; ++i) {
      pass_over(bars.v.full.first, bars.v.empty.first, &v_ring);
      if (C.turn != kNoTurn) take_turn(), pass_turn();
    }
  }

  // At the end of a walk: what only other warpgroups' rows look at, on the window's other side. V's
  // slots are given back before that of the last tile, which PV has yet to read.
  __device__ void pass_over_rest() {
    Ring<C.stages> v = v_ring;
    v.next();
    for (int i = 0; i < rest; ++i) {
      pass_over(bars.k.full.first, bars.k.empty.first, &k_ring);
      pass_over(bars.v.full.first, bars.v.empty.first, &v);
      if (C.turn != kNoTurn) take_turn(), pass_turn();
    }
  }
  // On from the last tile's V, past what was passed over.
  __device__ void end_v(int passed) {
    for (int i = 0; i <= passed; ++i) v_ring.next();
  }

  __device__ void release(uint32_t bar) {
    if (lane == 0) ptx::mbarrier_arrive(bar);
  }
  __device__ void take_turn() { ptx::bar_sync(kTurnBarrier + wg, 256); }
  __device__ void pass_turn() {
    ptx::bar_arrive(kTurnBarrier + (wg + 1 == C.warpgroups ? 0 : wg + 1), 256);
  }

  // ---- what rows may look at ----

  // First maxima: a row that has seen no key yet would have no maximum.
  __device__ bool is_inside(int j0) const {
    return j0 >= all_begin &&
           j0 + C.block_k <= all_end - int(kFirstMax && (P.causal || P.window()));
  }

  // On from tile n.
  __device__ void next_tile() {
    --n;
    if constexpr (P.block_mask_q != 0)
      n = tiles.live(x, p, Work<P, C>(p, x, ptx::opaque(tile)), n, lane, 32);
  }

  // Tiles before this one are not for this warpgroup's rows.
  __device__ int begin() const { return tiles.begin + rest; }

  __device__ int row_at(int r) const { return row0 + warp * 16 + lane / 4 + 8 * r; }

  // What the block mask forbids. Most tiles are kept whole, as far as a warp's rows go.
  template <int Size>
  __device__ void block(float (&s)[Size], int j0) {
    const Work<P, C> work(p, x, ptx::opaque(tile));
    const int first = min(row0 + warp * 16, work.rows - 1);
    const int last = min(first + 15, work.rows - 1);
    if (__all_sync(~0u, cells_of<P, C>(x, p, work, first, last, j0).all(lane, 32))) {
      if (!is_inside(j0)) limit(s, j0);
      return;
    }
    constexpr int kWords = (C.block_k + 31) / 32;
    // A bit a key: the lanes look 32 of them up at once, for one row after the other.
    uint32_t kept[2][kWords] = {};
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const Row<P> row = work.row(p, min(first + r, work.rows - 1));
#pragma unroll
      for (int n = 0; n < kWords; ++n) {
        const int j = j0 + 32 * n + lane;
        const uint32_t word = __ballot_sync(~0u, row.in_range(j) && row.block_allows(x, j));
        if (r == lane / 4) kept[0][n] = word >> lane % 4 * 2;
        if (r == lane / 4 + 8) kept[1][n] = word >> lane % 4 * 2;
      }
    }
#pragma unroll
    for (int i = 0; i < Size; ++i)
      if ((kept[i >> 1 & 1][i / 16] >> (i % 16 / 4 * 8 + i % 2) & 1) == 0) s[i] = -kInf;
  }

  // Causal limit, window and length: forbidden keys to -inf.
  template <int Size>
  __device__ void limit(float (&s)[Size], int j0) {
    const int at = j0 + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int begin = 0, end = keys;
      if constexpr (C.pack_gqa && (P.causal || P.window())) {
        const Row<P> row = Work<P, C>(p, x, ptx::opaque(tile)).row(p, row_at(r));
        begin = row.begin;
        end = min(end, row.end);
      } else if constexpr (P.window()) {
        // Opaque: reckoned out here, not kept through the walk.
        const KeyRange range =
            key_range(p, {.sk = keys, .shift = diagonal}, ptx::opaque(row_at(r)));
        begin = int(range.begin);
        end = int(range.end);
      } else if constexpr (P.causal) {
        end = min(end, row_at(r) + diagonal + 1);
      }
      // A tile is at one side of the window or at the other; at both where that is narrow.
      if (!P.window() || j0 + C.block_k > all_end)
#pragma unroll
        for (int i = 2 * r; i < Size; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (at + i / 4 * 8 + e >= end) s[i + e] = -kInf;
      if (P.window() && j0 < all_begin)
#pragma unroll
        for (int i = 2 * r; i < Size; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (at + i / 4 * 8 + e < begin) s[i + e] = -kInf;
    }
  }

  // Dropout of the weights of keys j and j + 1.
  __device__ void drop(float& w0, float& w1, int r, int j) const {
    const Work<P, C> work(p, x, tile);
    const int at = min(row_at(r), work.rows - 1);
    const Params& a = x.params;
    const Philox4 bits = dropout_bits(a.dropout_seed, a.dropout_offset, work.b, work.head(at),
                                      p.heads_q, work.query(at), j / 4);
    const uint32_t threshold = dropout_threshold(a.dropout_p);
    if (((j & 2) != 0 ? bits.word[2] : bits.word[0]) < threshold) w0 = 0;
    if (((j & 2) != 0 ? bits.word[3] : bits.word[1]) < threshold) w1 = 0;
  }

  // ---- what is computed again ----

  // Opaque, because the compiler mixes it up with the count of tiles to come.
  __device__ void record(uint32_t done_tile, uint32_t done_count) {
    ptx::st_shared_b32(bars.record(ptx::opaque(done_count), wg), done_tile + 1);
    ptx::st_shared_b32(bars.any_record, 1);
  }

  // Rows that were recorded are computed again as the definition has it, which reads only what they
  // may look at. At the end, because code that lets lanes of a warp part, inside the loop, costs a
  // tenth of its speed.
  __device__ void repair() {
    ptx::bar_sync(kStoreBarrier + wg, 128);
    if (ptx::ld_shared_b32(bars.any_record) == 0) return;
#pragma unroll 1
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t record = ptx::ld_shared_b32(bars.record(i, wg));
      if (record == 0) continue;
      const Work<P, C> work(p, x, record - 1);
      const int first = work.first + wg * 64;
#pragma unroll 1
      for (int r = warp; r < 64 && first + r < work.rows; r += 4)
        naive_row<P>(x, p, work.s, work.b, work.head(first + r), work.query(first + r));
    }
  }

  const KernelArgs& x;
  const Problem& p;
  const Control& bars;
  const uint32_t base;
  const int wg;
  const float unit;  // products, or what scores were made of them, times this are powers of two
  int lane, warp;
  uint64_t q_matrix, k_matrix, v_matrix;  // Q of these rows; the first stages
  uint32_t q = 0;                         // this warpgroup's part of the Q buffer
  uint32_t owed = 0;                      // the barrier of a Q buffer that O is still leaving

  uint32_t tile = 0, tile_phase = 0;
  uint32_t count = 0;  // of tiles so far
  Tiles<P, C> tiles;
  int n = 0;        // tiles from here down are yet to come
  int skipped = 0;  // tiles that none of the rows may look at
  int rest = 0;     // and such as come last, on the window's other side
  int row0 = 0, keys = 0,
      diagonal = 0;                // first row; keys of the sequence; row i stands at i + diagonal
  int all_begin = 0, all_end = 0;  // every row may look at these
  Ring<C.stages> k_ring, v_ring;
  Ring<C.q_buffers> q_ring;
};

}  // namespace attune
