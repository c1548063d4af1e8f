// A consumer warpgroup's way: from rows to rows, and for each of them over the tiles of keys, from
// the last to the first, so that the diagonal comes first. One tile's step, and what runs on the
// tensor cores beside it:
//
//   S(n) = Q K(n)^T and O += P(n+1) V(n+1) are issued
//   what lies beside K(n) is read                          S(n), PV(n+1)
//   S(n) is there: K(n) is given back
//   scores; maxima; some of the exponentials               PV(n+1)
//   PV(n+1) is there: V(n+1) is given back, O follows the maxima
//   the other exponentials: P(n)
//
// The first tile has no PV beside it. That of the last one comes after the loop; with C.flat the
// next rows' first QK runs beside it.
//
// The consumer has the arithmetic (Consumer for fp16 and bf16, ConsumerF32 for fp32) and its Rows:
//
//   kLimits        any tile may have forbidden keys, not those at a limit alone
//   kPreparesQ     Q is changed in shared memory before its first product
//   next_rows      Rows::next_rows, with that preparation
//   issue_qk       a group of wgmma: the scores of the tile of K that comes next
//   issue_pv       a group of wgmma: the weights times the tile of V that comes next
//   first_tile     the weights of the rows' first tile, with O = 0; gives its K back
//   read_beside_k  what came to shared memory beside K(n)
//   make_scores    from S(n); gives K(n) back
//   weigh          P(n) from the scores; ends PV(n+1) on the way and gives V(n+1) back
//   end_pv         a PV has ended: gives its V back
//   next_v         on to the next tile of V, where weigh has not gone on already
//   write          the end of the rows
//   end_q          every QK of the rows is done
//   owe_q          their O may leave through their Q buffer, which is given back by this barrier
//   hand_back_q    gives back the buffer that is owed, if O has left it
#pragma once

#include "rows.cuh"

namespace attune {

template <Problem P, WgmmaConfig C, class Consumer>
struct Walk {
  static constexpr bool kFirstMax = C.maxima == RowMaxima::first;

  __device__ static void run(Consumer& c) {
    if (C.turn != kNoTurn && c.rows.wg == C.warpgroups - 1) c.rows.pass_turn();
    bool more = c.next_rows();
    if (C.flat && more) first_qk(c);
    while (more) {
      if (!C.flat) first_qk(c);
      c.hand_back_q();
      over_keys(c);
      c.end_q();
      const uint32_t done = c.rows.tile, done_count = c.rows.count - 1, done_q = c.rows.q;
      const int passed = c.rows.rest;
      const uint32_t done_bar = c.rows.bars.q.empty[c.rows.q_ring];
      c.rows.q_ring.next();
      // Where Q is prepared by the consumer, the last PV runs beside that.
      if (Consumer::kPreparesQ) begin_pv(c);
      if (C.flat) more = c.next_rows();
      if (!Consumer::kPreparesQ) c.rows.bars.v.wait_full(c.rows.v_ring);
      if (C.flat && more) {  // the next rows' first QK goes along
        if (!Consumer::kPreparesQ) issue_pv(c);
        issue_qk(c);
        ptx::wgmma_wait_group<1>();
        c.end_pv();
        c.rows.end_v(passed);
        c.write(done, done_count, done_q);
        ptx::wgmma_wait_group<0>();
        ptx::pin(c.s);
        c.rows.pass_over_v();
      } else {
        if (!Consumer::kPreparesQ) issue_pv(c);
        ptx::wgmma_wait_group<0>();
        c.end_pv();
        // No rows came, so `rest` is still that of these: the same number, in another register.
        c.rows.end_v(Consumer::kPreparesQ ? passed : c.rows.rest);
        c.write(done, done_count, done_q);
      }
      c.owe_q(done_bar);
      if (!C.flat) more = C.schedule != kGrid && c.next_rows();
    }
  }

 private:
  __device__ static void issue_qk(Consumer& c) {
    ptx::wgmma_fence();
    c.issue_qk();
  }
  __device__ static void issue_pv(Consumer& c) {
    ptx::wgmma_fence();
    c.issue_pv();
  }
  __device__ static void begin_pv(Consumer& c) {
    c.rows.bars.v.wait_full(c.rows.v_ring);
    issue_pv(c);
  }

  __device__ static void first_qk(Consumer& c) {
    issue_qk(c);
    c.rows.pass_over_v();
    ptx::wgmma_wait_group<0>();
    ptx::pin(c.s);
  }

  // From the diagonal through what all rows may look at to the window's other side.
  __device__ static void over_keys(Consumer& c) {
    constexpr bool kLimits = Consumer::kLimits;  // in every tile
    c.first_tile((c.rows.n - 1) * C.block_k);
    c.rows.next_tile();
    if constexpr (!kLimits && (P.causal || P.window()))
      for (; c.rows.n > c.rows.begin() && !c.rows.is_inside((c.rows.n - 1) * C.block_k); --c.rows.n)
        step<true, true>(c, (c.rows.n - 1) * C.block_k);
#pragma unroll 1
    for (; c.rows.n > c.rows.begin() &&
           (kLimits || !P.window() || c.rows.is_inside((c.rows.n - 1) * C.block_k));
         c.rows.next_tile())
      step<kLimits, !kFirstMax>(c, (c.rows.n - 1) * C.block_k);
    if constexpr (!kLimits && P.window())
#pragma unroll 1
      for (; c.rows.n > c.rows.begin(); --c.rows.n)
        step<true, !kFirstMax>(c, (c.rows.n - 1) * C.block_k);
    c.rows.pass_over_rest();
  }

  // Limits: whether some row may not look at some key. Maxima: whether the rows' may grow.
  template <bool Limits, bool Maxima>
  __device__ static void step(Consumer& c, int j0) {
    const uint32_t v_empty = c.rows.bars.v.empty[c.rows.v_ring];
    c.rows.bars.k.wait_full(c.rows.k_ring);
    if (C.turn == kProductTurn) c.rows.take_turn();
    issue_qk(c);
    begin_pv(c);
    if (C.turn == kProductTurn) c.rows.pass_turn();
    c.read_beside_k();
    ptx::wgmma_wait_group<1>();
    ptx::pin(c.s);
    c.template make_scores<Limits>(j0);
    if (C.turn == kExpTurn) c.rows.take_turn();
    c.template weigh<Limits, Maxima>(j0, v_empty);
    if (C.turn == kExpTurn) c.rows.pass_turn();
    c.next_v();
  }
};

}  // namespace attune
