// Moves of 8x8 matrices of 16-bit numbers between shared memory and the registers of a warp: lanes
// 8n..8n+7 hold the addresses of the rows of matrix n. Lane l has, with g = l / 4 and q = l % 4,
// elements 2q and 2q+1 of row g of each; transposed: of column g, rows 2q and 2q+1.
#pragma once

#include "../problem.h"

namespace attune::ptx {

// sm_75
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}

// sm_75
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem)
               : "memory");
}

// sm_90
__device__ inline void stmatrix_x4(uint32_t smem, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace attune::ptx
