// Tensor-core products of one warp, mma.sync.
//
// Lane l holds, with g = l / 4 and q = l % 4 (two 16-bit numbers a register):
//   A 16x16: a[0] (g, 2q..), a[1] (g+8, 2q..), a[2] (g, 2q+8..), a[3] (g+8, 2q+8..)
//   B 16x8:  b0 (2q.., g), b1 (2q+8.., g)
//   C 16x8:  c[0..1] (g, 2q..), c[2..3] (g+8, 2q..)
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_80
__device__ inline void mma_m16n8k16_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sm_80
__device__ inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace attune::ptx
