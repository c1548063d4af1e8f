// Dropout's random bits: Philox4x32-10 (Salmon et al., SC'11), a counter-based generator. One call
// serves the four keys 4*(j/4) .. 4*(j/4)+3, so the bits of (b, h, i, j) do not depend on tile
// shape, thread or backend.
#pragma once

#include "../problem.h"

namespace attune {

struct Philox4 {
  uint32_t word[4];
};

ATTUNE_HD constexpr Philox4 philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                          uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c0 = n0;
    c1 = uint32_t(p1);
    c2 = n2;
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The bits for keys 4*quad .. 4*quad+3 of row i of (batch b, query head h of heads).
ATTUNE_HD constexpr Philox4 dropout_bits(uint64_t seed, uint64_t offset, int64_t b, int64_t h,
                                         int64_t heads, int64_t i, int64_t quad) {
  return philox4x32_10(uint32_t(quad), uint32_t(i), uint32_t(b * heads + h), uint32_t(offset),
                       uint32_t(seed), uint32_t(seed >> 32) ^ uint32_t(offset >> 32));
}

// A key is dropped when its word is below this. p in [0, 1).
ATTUNE_HD constexpr uint32_t dropout_threshold(float p) {
  return uint32_t(double(p) * 4294967296.0);
}

}  // namespace attune
