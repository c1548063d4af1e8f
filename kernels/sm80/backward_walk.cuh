// What a block of the backward pass owns, and the tiles that it walks over.
#pragma once

#include "backward_tile.cuh"

namespace attune {

template <Problem P, MmaBackwardConfig C, bool kKeys>  // own rows are keys, or query rows
class BackwardWalk {
 protected:
  using Plan = BackwardPlan<P, C, kKeys>;
  static constexpr int kDim = Plan::kDim, kDimV = Plan::kDimV;
  static constexpr int kWarpRows = kKeys ? C.warp_keys : C.warp_rows, kMT = kWarpRows / 16;
  static constexpr int kThreads = C.threads();

  __device__ BackwardWalk(const GradientArgs& args, const Problem& problem, uint32_t block,
                          uint8_t* smem)
      : x(args.forward),
        g(args.grads),
        p(problem),
        base(ptx::shared_address(smem)),
        lane(threadIdx.x % 32) {
    const int64_t longest = kKeys ? p.seq_k : p.seq_q;
    const uint32_t tiles = uint32_t((longest + Plan::kRows - 1) / Plan::kRows);
    const uint32_t head = block / tiles, tile = block - head * tiles;
    const uint32_t heads = uint32_t(kKeys ? p.heads_kv : p.heads_q);
    b = int(head / heads);
    own_head = int(head - uint32_t(b) * heads);
    // Under a causal limit the last rows, and the first keys, take longest: they come first.
    first = int(kKeys ? tile : tiles - 1 - tile) * Plan::kRows;
    s = Sequence::of(p, x.params, b);
    // All of these fit 32 bits, which the compiler does not know.
    s = {int(s.sq), int(s.sk), int(s.q0), int(s.k0), int(s.shift)};
  }

  // Own rows of the sequence: gradients of keys that are not used are 0.
  __device__ int rows() const {
    Problem whole = p;
    whole.key_lengths = false;
    return int(kKeys ? Sequence::of(whole, x.params, b).sk : s.sq);
  }

  // ---- The block's place ----

  // opaque: what can be computed where it is used is not kept in registers through the loop, where
  // it would crowd out the accumulators.
  __device__ static int warp() { return int(ptx::opaque(threadIdx.x)) / 32; }
  __device__ int batch() const { return int(ptx::opaque(uint32_t(b))); }
  __device__ int warp_first() const { return first + warp() * kWarpRows; }
  __device__ int own_row(int mt, int r) const { return warp_first() + mt * 16 + r * 8 + lane / 4; }
  __device__ int head_kv() const { return kKeys ? own_head : own_head / int(p.group()); }

  // A tile of the walk: of keys, or of the query rows of head h.
  struct Place {
    int h, tile;
  };

  __device__ void find_tiles() {
    const int last = min(first + Plan::kRows, int(kKeys ? s.sk : s.sq)) - 1;
    int64_t begin, end;
    if constexpr (kKeys) {
      const RowRange range = row_range(p, s, first, last);
      begin = range.begin;
      end = range.end;
    } else {
      begin = Row<P>(p, s, b, own_head, first).begin;
      end = Row<P>(p, s, b, own_head, last).end;
    }
    if (end < begin) end = begin;
    tile_begin = int(begin / Plan::kWalked);
    tile_end = end == begin ? tile_begin : int((end + Plan::kWalked - 1) / Plan::kWalked);
    head_begin = kKeys ? own_head * int(p.group()) : own_head;
    head_end = tile_begin == tile_end ? head_begin : head_begin + (kKeys ? int(p.group()) : 1);
  }

  __device__ void advance(Place& at) const {
    do {
      if (++at.tile >= tile_end) {
        at.tile = tile_begin;
        ++at.h;
      }
    } while (at.h < head_end && !is_live(at));
  }
  __device__ Place start() const {
    Place at{head_begin, tile_begin};
    if (at.h < head_end && !is_live(at)) advance(at);
    return at;
  }

  // Whether the block mask keeps something of the tile; each warp finds it by itself.
  __device__ bool is_live(const Place& at) const {
    if constexpr (P.block_mask_q == 0) return true;
    const View4& mask = x.params.block_mask;
    const int walked = at.tile * Plan::kWalked;
    const int i0 = kKeys ? walked : first, j0 = kKeys ? first : walked;
    const int i1 = min(i0 + (kKeys ? Plan::kWalked : Plan::kRows), int(s.sq)) - 1;
    const int j1 = min(j0 + (kKeys ? Plan::kRows : Plan::kWalked), int(s.sk)) - 1;
    const int q0 = cell_of(i0, p.block_mask_q), k0 = cell_of(j0, p.block_mask_k);
    const int wide = cell_of(j1, p.block_mask_k) - k0 + 1;
    const int count = wide * (cell_of(i1, p.block_mask_q) - q0 + 1);
    bool live = false;
    for (int n = lane; n < count; n += 32)
      live |=
          static_cast<const uint8_t*>(
              mask.data)[b * mask.stride[0] + at.h * mask.stride[1] +
                         (q0 + n / wide) * mask.stride[2] + (k0 + n % wide) * mask.stride[3]] != 0;
    return __any_sync(~0u, live);
  }

  // ---- Loads ----

  __device__ const uint16_t* query_row(const View& v, int h, int i) const {
    return row_of<P.dtype>(v, batch(), h, s.q0 + i);
  }
  __device__ const uint16_t* key_row(const View& v, int j) const {
    return row_of<P.dtype>(v, batch(), int(ptx::opaque(uint32_t(head_kv()))), s.k0 + j);
  }

  template <int Rows, int Dim, int Padded>
  __device__ static void load(uint32_t smem, int valid, const uint16_t* rows, int64_t stride) {
    const int thread = int(ptx::opaque(threadIdx.x));
    if constexpr (C.vector) {
      load_rows<Rows, Dim, Padded, kThreads, true>(smem, thread, valid, rows, stride);
    } else {
      // Eight rows at a time: what is on its way lies in registers.
#pragma unroll 1
      for (int row = 0; row < Rows; row += 8)
        load_rows<8, Dim, Padded, kThreads, false>(smem + row * Padded * 2, thread, valid - row,
                                                   rows + row * stride, stride);
    }
  }
  template <int Rows>
  __device__ void load_queries(uint32_t smem, uint32_t smem_v, int h, int i0) const {
    const int valid = int(s.sq) - i0;
    load<Rows, P.dim, kDim>(smem, valid, query_row(x.params.q, h, i0), x.params.q.stride_s);
    load<Rows, P.dim_v, kDimV>(smem_v, valid, query_row(g.dout, h, i0), g.dout.stride_s);
  }
  template <int Rows>
  __device__ void load_keys(uint32_t smem, uint32_t smem_v, int j0) const {
    const int valid = int(s.sk) - j0;
    load<Rows, P.dim, kDim>(smem, valid, key_row(x.params.k, j0), x.params.k.stride_s);
    load<Rows, P.dim_v, kDimV>(smem_v, valid, key_row(x.params.v, j0), x.params.v.stride_s);
  }

  __device__ void load_own() const {
    if constexpr (kKeys)
      load_keys<Plan::kRows>(base, base + Plan::kOwnV, first);
    else
      load_queries<Plan::kRows>(base, base + Plan::kOwnV, own_head, first);
  }
  __device__ void load_tile(const Place& at, uint32_t stage) const {
    const int walked = at.tile * Plan::kWalked;
    if constexpr (kKeys) {
      load_queries<Plan::kWalked>(stage, stage + Plan::kTileV, at.h, walked);
      const RowState* states = &row_state(x, batch(), at.h, 0);
      for (int n = threadIdx.x; n < Plan::kWalked; n += kThreads) {
        const bool inside = walked + n < s.sq;  // beyond: weight 0
        ptx::cp_async_cg(stage + Plan::kStates + n * int(sizeof(RowState)),
                         inside ? states + walked + n : states, inside ? kChunk : 0);
      }
    } else {
      load_keys<Plan::kWalked>(stage, stage + Plan::kTileV, walked);
    }
  }

  __device__ uint32_t stage_of(int slot) const {
    return base + Plan::kStages + slot * Plan::kStage;
  }

  // The walk: tiles come `stages` - 1 ahead, and one barrier a tile says both that a tile is there
  // and that the one before it may be overwritten.
  template <class Compute>
  __device__ void walk(const Compute& compute) {
    load_own();
    Place ahead = start(), now = ahead;
#pragma unroll
    for (int slot = 0; slot < C.stages - 1; ++slot) {
      if (ahead.h < head_end) {
        load_tile(ahead, stage_of(slot));
        advance(ahead);
      }
      ptx::cp_async_commit_group();
    }
    for (int slot = 0; now.h < head_end; advance(now)) {
      ptx::cp_async_wait_group<C.stages - 2>();
      __syncthreads();
      if (ahead.h < head_end) {
        load_tile(ahead, stage_of(slot == 0 ? C.stages - 1 : slot - 1));
        advance(ahead);
      }
      ptx::cp_async_commit_group();
      compute(now, stage_of(slot));
      slot = slot == C.stages - 1 ? 0 : slot + 1;
    }
    ptx::cp_async_wait_group<0>();
    __syncthreads();  // results go where own rows were, and another walk begins
  }

  // Which keys of a part its rows look at, as far as causal limit, window and lengths say.
  struct Look {
    bool some, all;
  };
  __device__ Look look_at(const Place& at, int walked, int count) const {
    const int i0 = kKeys ? walked : warp_first(), j0 = kKeys ? warp_first() : walked;
    const int i1 = min(i0 + (kKeys ? count : kWarpRows), int(s.sq)) - 1;
    const int j1 = j0 + (kKeys ? kWarpRows : count);
    if (i1 < i0) return {false, false};
    const Row<P> low(p, s, b, at.h, i0), high(p, s, b, at.h, i1);
    return {j1 > low.begin && j0 < high.end, j0 >= high.begin && j1 <= low.end};
  }

  const KernelArgs& x;
  const GradParams& g;
  const Problem& p;
  const uint32_t base;  // of shared memory
  const int lane;
  int b, own_head;  // a key head, or a query head
  int first;        // the block's first own row
  Sequence s;

 private:
  int head_begin, head_end, tile_begin, tile_end;  // of the walk
};

}  // namespace attune
