// The part of a mask that came to shared memory beside a tile of K, in a consumer's registers.
#pragma once

#include "../ptx/matrix.h"
#include "ring.cuh"

namespace attune {

template <Problem P, WgmmaConfig C>
class StagedMask {
  static constexpr WgmmaLayout kLayout = wgmma_layout(C, P);
  static constexpr MaskTile kMask = mask_tile(C, P);
  static constexpr int kScores = C.block_k / 2;  // of a thread

 public:
  // A tile's numbers, in pairs, but for fp32: as they lie in the products' accumulators.
  __device__ void load(const KernelArgs& x, uint32_t base, int stage, int wg, int warp, int lane) {
    if constexpr (C.stages_mask()) {
      const uint32_t tile_at =
          base + kLayout.m_at + stage * kLayout.m + wg * (kLayout.m / C.warpgroups);
      const bool one_row = x.params.mask.stride[2] == 0;
      if constexpr (element_bytes(P.mask) == 2 && kMask.pitch == 128) {
        const int row = one_row ? 0 : warp * 16 + lane % 16;
#pragma unroll
        for (int n8 = 0; n8 < C.block_k / 8; n8 += 2) {
          const int chunk = n8 + lane / 16;
          uint32_t v[4];
          ptx::ldmatrix_x4(
              v, tile_at + chunk / 8 * panel_bytes(64) + row * 128 + ((chunk % 8 ^ row % 8) << 4));
#pragma unroll
          for (int e = 0; e < 4; ++e) words[2 * n8 + e] = v[e];
        }
      } else {
#pragma unroll
        for (int i = 0; i < kScores; i += 2) {
          const int row = one_row ? 0 : warp * 16 + lane / 4 + 8 * (i >> 1 & 1);
          const int key = i / 4 * 8 + lane % 4 * 2;
          const int at = key / kMask.keys * 64 * kMask.pitch + row * kMask.pitch +
                         key % kMask.keys * element_bytes(P.mask);
          const uint32_t from = tile_at + (at ^ (at >> 7 & kMask.pitch / 16 - 1) << 4);
          if constexpr (P.mask == MaskKind::f32) {
            words[i] = ptx::ld_shared_b32(from);
            words[i + 1] = ptx::ld_shared_b32(from + 4);
          } else if constexpr (element_bytes(P.mask) == 2) {
            words[i / 2] = ptx::ld_shared_b32(from);
          } else {
            words[i / 2] = ptx::ld_shared_u16(from);
          }
        }
      }
    }
  }

  // What is added to the thread's score i: -inf where the mask forbids the key.
  __device__ float at(int i) const {
    if (P.mask == MaskKind::f32) return __uint_as_float(words[i % kWords]);
    return mask_of_bits<P.mask>(words[i / 2 % kWords] >>
                                (i % 2 == 0 ? 0 : 8 * element_bytes(P.mask)));
  }

 private:
  static constexpr int kWords = !C.stages_mask()          ? 1
                                : P.mask == MaskKind::f32 ? kScores
                                                          : kScores / 2;
  uint32_t words[kWords];
};

}  // namespace attune
