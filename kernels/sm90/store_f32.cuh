// The end of an fp32 consumer's rows.
#pragma once

#include "consumer_f32.cuh"

namespace attune {

// O, normalised, and LSE. Rows are recorded, to be computed again, where scores have lost bits,
// where something is not finite, and where V's bits could be missing: V and P are exact to 2^-25
// of their units, so a row whose results are all below 2^-6 in V's, where the largest of V stands
// above 2^7, might be off by 4e-6 of itself. (Such rows' weights lie on small V beside large ones
// that they hardly look at, or not at all.)
template <Problem P, WgmmaConfig C>
__device__ inline void ConsumerF32<P, C>::write(uint32_t done_tile, uint32_t done_count, uint32_t) {
  const Work<P, C> done(rows.p, rows.x, ptx::opaque(done_tile));
  const float back = power_of_two(-exponent_o);
  bool sound = !P.score_mod || !lost;
  float zero = 0;  // or NaN
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] = row_sum(l[r]);
    float largest = 0;
#pragma unroll
    for (int i = 2 * r; i < kO; i += 4)
      largest = fmaxf(fmaxf(largest, fabsf(o[i])), fabsf(o[i + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const int i = done.first + rows.wg * 64 + rows.warp * 16 + rows.lane / 4 + 8 * r;
    if (i >= done.rows) continue;
    const Row<P> row = done.row(rows.p, i);
    const bool empty = m[r] == -kInf && l[r] == 0;
    const Finish f = finish_row<P>(rows.x, row, kScores ? m[r] * kLog2e : m[r], l[r]);
    if (rows.lane % 4 == 0) write_lse<P>(rows.x, done.s, row, f);
    sound &= empty || (l[r] > .5f && l[r] < kInf &&
                       (exponent_o == kNothingThere || largest >= 0x1p-6f * kUp * l[r]));
    const float factor = f.factor / kUp;
    float* out =
        const_cast<float*>(row_of<P.dtype>(rows.x.params.out, done.b, done.h, done.s.q0 + i)) +
        rows.lane % 4 * 2;
#pragma unroll
    for (int n8 = 0; n8 < kDimV / 8; ++n8) {
      const float2 two =
          make_float2(o[4 * n8 + 2 * r] * factor * back, o[4 * n8 + 2 * r + 1] * factor * back);
      zero = fmaf(two.x, 0, fmaf(two.y, 0, zero));
      if (kDimV == P.dim_v || n8 * 8 + rows.lane % 4 * 2 < P.dim_v)
        *reinterpret_cast<float2*>(out + n8 * 8) = two;
    }
  }
  if (!sound || zero != 0) rows.record(done_tile, done_count);
}

}  // namespace attune
