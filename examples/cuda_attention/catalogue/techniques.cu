// Attention with each technique behind a switch, so that one program measures what each brings:
// bench/techniques.py sets the switches one after the other and prints the table. With all of them
// off, a warp takes one row and reads K and V from global memory; with all of them on, this is the
// walk of FlashAttention-2 on tensor cores. The files beside this one show single steps, shorter.
//
// head_dim: multiples of 8 up to 128 in tiles; others up to 256, and addresses that are not
// multiples of 16 bytes, take the rows one by one. 8.0 and up.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// EVOLVE-BLOCK-START attention
// TENSOR_CORES and DOUBLE_BUFFERING need TILING. Without ONLINE_SOFTMAX there are two walks over
// the keys, the first one for the maxima. Where head_dim is above 64, a warp has 16 rows.
constexpr int TILING = 1;            // EVOLVE-PARAM TILING {0,1} algorithm: tiles in shared memory
constexpr int ONLINE_SOFTMAX = 1;    // EVOLVE-PARAM ONLINE_SOFTMAX {0,1} algorithm: one walk
constexpr int CAUSAL_SKIPPING = 1;   // EVOLVE-PARAM CAUSAL_SKIPPING {0,1} algorithm: fewer tiles
constexpr int TENSOR_CORES = 1;      // EVOLVE-PARAM TENSOR_CORES {0,1} implementation: mma.sync
constexpr int COALESCING = 1;        // EVOLVE-PARAM COALESCING {0,1} implementation: whole rows
constexpr int DOUBLE_BUFFERING = 1;  // EVOLVE-PARAM DOUBLE_BUFFERING {0,1} implementation: cp.async
constexpr int LAZY_RESCALING = 1;    // EVOLVE-PARAM LAZY_RESCALING {0,1} implementation: from 2^8
constexpr int WARPS = 4;             // EVOLVE-PARAM WARPS {4,8} hardware: of a block
constexpr int ROWS_PER_WARP = 32;    // EVOLVE-PARAM ROWS_PER_WARP {16,32} hardware: query rows
constexpr int BLOCK_K = 64;          // EVOLVE-PARAM BLOCK_K {32,64,128} hardware: keys of a tile

constexpr int kThreads = WARPS * 32;
constexpr int kPart = BLOCK_K < 64 ? BLOCK_K : 64;  // keys whose scores are in registers at once
constexpr unsigned kAll = 0xffffffffu;              // every lane of a warp

// ---- Single instructions ----

// 2^x; 2^-inf is 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same number, of which the compiler no longer knows where it came from: what is computed from
// it is computed where it is used. Kept in registers through the walk it would crowd out the rest.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// c += a b on tensor cores: a is 16x16, b 16x8. Lane l, with g = l / 4 and q = l % 4, holds
//   a[0] (row g, columns 2q, 2q+1), a[1] (g+8, 2q), a[2] (g, 2q+8), a[3] (g+8, 2q+8)
//   b0 (rows 2q, 2q+1, column g), b1 (2q+8, g)
//   c[0], c[1] (row g, columns 2q, 2q+1), c[2], c[3] (g+8, 2q)
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of halves: lanes 8n to 8n+7 give the addresses of the rows of matrix n. A lane
// gets (row g, columns 2q, 2q+1) of each; transposed (rows 2q, 2q+1, column g).
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Copies into shared memory that go on by themselves; `bytes` are read, the rest becomes zero.
__device__ inline void copy_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void copy_4(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Until this thread's copies have arrived.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline uint4 load_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline void store_16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ inline void store_4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

__device__ inline uint32_t pack(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// ---- Tiles in shared memory ----

// A tile's rows are kDim halves long, in chunks of 16 bytes. Chunk c of row r lies in place c ^ r
// (its last three bits): eight rows of one column of chunks lie in eight different banks.
template <int kDim>
__device__ inline uint32_t place(int row, int chunk) {
  return uint32_t(row * kDim * 2 + (chunk ^ row % 8) * 16);
}
// From the place of chunk 0 or 1 on by an even number of chunks: tiles begin at multiples of 256.
__device__ inline uint32_t chunks_on(uint32_t place, int chunks) { return place ^ chunks * 16; }

__device__ inline uint32_t two_halves(const half* from) {
  const uint32_t low = *reinterpret_cast<const uint16_t*>(from);
  return low | uint32_t(*reinterpret_cast<const uint16_t*>(from + 1)) << 16;
}

// Rows of a matrix into a tile; what is outside of the matrix becomes zero. Ahead: the copies are
// only begun.
template <int kDim, int kRows, bool kAhead>
__device__ void fill_tile(uint32_t tile, const half* from, int rows, int head_dim) {
  constexpr int kChunks = kDim / 8;
  constexpr int kAtOnce = kAhead && COALESCING ? 4 : 1;  // what is not copied takes registers
#pragma unroll kAtOnce
  for (int n = opaque(int(threadIdx.x)); n < kRows * kChunks; n += kThreads) {
    const int row = COALESCING ? n / kChunks : n % kRows;
    const int chunk = COALESCING ? n % kChunks : n / kRows;
    const bool inside = row < rows && chunk * 8 < head_dim;
    const half* source = inside ? from + size_t(row) * head_dim + chunk * 8 : from;
    const uint32_t to = tile + place<kDim>(row, chunk);
    if constexpr (kAhead && COALESCING) {
      copy_16(to, source, inside ? 16 : 0);
    } else if constexpr (kAhead) {
      for (int part = 0; part < 4; ++part) copy_4(to + part * 4, source + part * 2, inside ? 4 : 0);
    } else {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (inside && COALESCING)
        v = *reinterpret_cast<const uint4*>(source);
      else if (inside)
        v = make_uint4(two_halves(source), two_halves(source + 2), two_halves(source + 4),
                       two_halves(source + 6));
      store_16(to, v);
    }
  }
}

// What a warp holds: 16 rows in each of kTiles parts. Lane l owns rows g and g+8 of a part.
template <int kDim>
struct Warp {
  static constexpr int kTiles = kDim > 64 ? 1 : ROWS_PER_WARP / 16;
  static constexpr int kColumns = kDim / 4;  // of O, that a lane holds of each of its rows
  static constexpr int kRows = WARPS * kTiles * 16;
  static constexpr int kBuffers = TILING && DOUBLE_BUFFERING ? 2 : 1;
  static constexpr int kTileBytes = BLOCK_K * kDim * 2;
  static constexpr int kSharedBytes = kRows * kDim * 2 + kBuffers * 2 * kTileBytes;

  float scores[kTiles][kPart / 8][4];  // as c of multiply_add: columns are keys
  float out[kTiles][2][kColumns];      // by row g or g+8
  float top[kTiles][2];                // the largest score so far, in powers of two
  float sum[kTiles][2];                // of the weights of this lane's keys

  // The column of O that out[..][i] is of. Pairs are neighbours.
  __device__ static int column(int i) {
    const int q = int(threadIdx.x) % 4;
    return TENSOR_CORES ? i / 2 * 8 + q * 2 + i % 2 : (q + i / 8 * 4) * 8 + i % 8;
  }

  // scores = Q K^T of this warp's rows and kPart keys from `key` on.
  __device__ void multiply_keys(uint32_t q_tile, uint32_t k_tile, int first_row, int key,
                                const uint32_t (&q)[kTiles][kDim / 16][4]) {
    const int lane = opaque(int(threadIdx.x)) % 32;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[t][n][e] = 0;
    if constexpr (TENSOR_CORES) {
      const int row = key + lane % 8 + lane / 16 * 8;
      const uint32_t from = k_tile + place<kDim>(row, lane / 8 % 2);
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
        for (int n = 0; n < kPart / 8; n += 2) {
          uint32_t k[4];
          load_matrices(k, chunks_on(from, step * 2) + n * 8 * kDim * 2);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            multiply_add(scores[t][n], q[t][step], k[0], k[1]);
            multiply_add(scores[t][n + 1], q[t][step], k[2], k[3]);
          }
        }
    } else {
      for (int chunk = 0; chunk < kDim / 8; ++chunk)
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const int row = first_row + t * 16 + lane / 4;
          const uint4 q0 = load_16(q_tile + place<kDim>(row, chunk));
          const uint4 q1 = load_16(q_tile + place<kDim>(row + 8, chunk));
#pragma unroll
          for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const uint4 k = load_16(k_tile + place<kDim>(key + n * 8 + lane % 4 * 2 + e, chunk));
              add_products(scores[t][n][e], q0, k);
              add_products(scores[t][n][2 + e], q1, k);
            }
        }
    }
  }

  __device__ static void add_products(float& sum, const uint4& a, const uint4& b) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 u = __half22float2(*reinterpret_cast<const half2*>(&x[i]));
      const float2 v = __half22float2(*reinterpret_cast<const half2*>(&y[i]));
      sum = fmaf(u.x, v.x, sum);
      sum = fmaf(u.y, v.y, sum);
    }
  }

  // Scores of keys that a row may not see become -inf. Row and key: of the first ones here.
  __device__ void forbid(int row, int key, int seq_len, bool causal) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = row + t * 16 + lane / 4 + e / 2 * 8;
        const int end = causal ? min(seq_len, i + 1) : seq_len;
#pragma unroll
        for (int n = 0; n < kPart / 8; ++n)
          if (key + n * 8 + lane % 4 * 2 + e % 2 >= end) scores[t][n][e] = -INFINITY;
      }
  }

  // The rows' maxima. What was summed before shrinks where they grow (not in a walk for the maxima
  // alone, where nothing was summed).
  __device__ void raise_tops(float unit) {
    float shrink[kTiles][2];
    bool grew = false;
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float largest = scores[t][0][2 * r];
#pragma unroll
        for (int n = 0; n < kPart / 8; ++n)
          largest = fmaxf(largest, fmaxf(scores[t][n][2 * r], scores[t][n][2 * r + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 2));
        // The first maximum is finite: every row sees the first key, and tiles come in order.
        const float before = top[t][r];
        float now = fmaxf(before, largest * unit);
        if (ONLINE_SOFTMAX && LAZY_RESCALING && now - before <= 8) now = before;
        grew |= now != before;
        top[t][r] = now;
        shrink[t][r] = power_of_two(before - now);
      }
    if constexpr (ONLINE_SOFTMAX) {
      if (!__any_sync(kAll, grew)) return;
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sum[t][r] *= shrink[t][r];
#pragma unroll
          for (int i = 0; i < kColumns; ++i) out[t][r][i] *= shrink[t][r];
        }
    }
  }

  __device__ void weigh(float unit) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float weight = power_of_two(fmaf(scores[t][n][e], unit, -top[t][e / 2]));
          scores[t][n][e] = weight;
          sum[t][e / 2] += weight;
        }
  }

  // O += P V. The weights are where mma.sync wants them: c of one product is a of the next.
  __device__ void add_values(uint32_t v_tile, int key) {
    const int lane = opaque(int(threadIdx.x)) % 32;
    if constexpr (TENSOR_CORES) {
      const uint32_t from = v_tile + place<kDim>(key + lane % 16, lane / 16);
#pragma unroll
      for (int step = 0; step < kPart / 16; ++step) {
        uint32_t p[kTiles][4];
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float(&from)[4] = scores[t][step * 2 + e / 2];
            p[t][e] = pack(from[e % 2 * 2], from[e % 2 * 2 + 1]);
          }
#pragma unroll
        for (int n = 0; n < kDim / 8; n += 2) {
          uint32_t v[4];
          load_transposed(v, chunks_on(from, n) + step * 16 * kDim * 2);
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              const int i = (n + m) * 2;
              float c[4] = {out[t][0][i], out[t][0][i + 1], out[t][1][i], out[t][1][i + 1]};
              multiply_add(c, p[t], v[2 * m], v[2 * m + 1]);
              out[t][0][i] = c[0], out[t][0][i + 1] = c[1];
              out[t][1][i] = c[2], out[t][1][i + 1] = c[3];
            }
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll 1
          for (int owner = 0; owner < 4; ++owner) {  // the lane of four that has this key's weights
            float weight[kTiles][2];
#pragma unroll
            for (int t = 0; t < kTiles; ++t)
#pragma unroll
              for (int r = 0; r < 2; ++r)
                weight[t][r] = __shfl_sync(kAll, scores[t][n][2 * r + e], lane / 4 * 4 + owner);
#pragma unroll
            for (int i = 0; i < kColumns; i += 8) {
              const uint4 v =
                  load_16(v_tile + place<kDim>(key + n * 8 + owner * 2 + e, lane % 4 + i / 8 * 4));
              const uint32_t x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                const float2 pair = __half22float2(*reinterpret_cast<const half2*>(&x[j]));
#pragma unroll
                for (int t = 0; t < kTiles; ++t)
#pragma unroll
                  for (int r = 0; r < 2; ++r) {
                    float(&o)[kColumns] = out[t][r];
                    o[i + 2 * j] = fmaf(weight[t][r], pair.x, o[i + 2 * j]);
                    o[i + 2 * j + 1] = fmaf(weight[t][r], pair.y, o[i + 2 * j + 1]);
                  }
              }
            }
          }
    }
  }

  // Normalised, through the warp's own rows of the tile of Q, so that whole rows are written.
  __device__ void write(half* o, uint32_t q_tile, int first_row, int row, int seq_len,
                        int head_dim) {
    const int lane = int(threadIdx.x) % 32;
    __syncwarp();  // every lane has read Q
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float all = sum[t][r];
        all += __shfl_xor_sync(kAll, all, 1);
        all += __shfl_xor_sync(kAll, all, 2);
        const float factor = __fdividef(1, all);
        const int at = t * 16 + lane / 4 + r * 8;
#pragma unroll
        for (int i = 0; i < kColumns; i += 2) {
          const uint32_t pair = pack(out[t][r][i] * factor, out[t][r][i + 1] * factor);
          if constexpr (COALESCING)
            store_4(q_tile + place<kDim>(first_row + at, column(i) / 8) + column(i) % 8 * 2, pair);
          else if (row + at < seq_len && column(i) < head_dim)
            *reinterpret_cast<uint32_t*>(o + size_t(row + at) * head_dim + column(i)) = pair;
        }
      }
    if constexpr (COALESCING) {
      __syncwarp();
      constexpr int kChunks = kDim / 8;
#pragma unroll 4
      for (int n = lane; n < kTiles * 16 * kChunks; n += 32) {
        const int at = n / kChunks, chunk = n % kChunks;
        if (row + at < seq_len && chunk * 8 < head_dim)
          *reinterpret_cast<uint4*>(o + size_t(row + at) * head_dim + chunk * 8) =
              load_16(q_tile + place<kDim>(first_row + at, chunk));
      }
    }
  }
};

// A block takes some rows of a head and walks over its keys, tile by tile. Each warp has rows of
// its own; scores, weights and O stay in its registers.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 8 / WARPS)
    attention_tiles(const half* Q, const half* K, const half* V, half* O, int seq_len, int head_dim,
                    int row_tiles, bool causal) {
  using W = Warp<kDim>;
  extern __shared__ __align__(256) unsigned char memory[];
  const uint32_t q_tile = uint32_t(__cvta_generic_to_shared(memory));
  const uint32_t buffers = q_tile + W::kRows * kDim * 2;
  const bool skips = CAUSAL_SKIPPING && causal;
  // The rows with the most keys begin first: what ends last is short.
  const int turn = int(blockIdx.x) % row_tiles, row_tile = skips ? row_tiles - 1 - turn : turn;
  const size_t head = size_t(int(blockIdx.x) / row_tiles) * seq_len * head_dim;
  const int first = row_tile * W::kRows;
  const int warp_row = int(threadIdx.x) / 32 * W::kTiles * 16;  // in the block
  const int row = first + warp_row, lane = int(threadIdx.x) % 32;
  const float unit = rsqrtf(float(head_dim)) * 1.44269504f;  // of scores, to powers of two
  const int keys = skips ? min(seq_len, first + W::kRows) : seq_len;
  const int tiles = (keys + BLOCK_K - 1) / BLOCK_K;

  W w;
#pragma unroll
  for (int t = 0; t < W::kTiles; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      w.top[t][r] = -INFINITY;
      w.sum[t][r] = 0;
#pragma unroll
      for (int i = 0; i < W::kColumns; ++i) w.out[t][r][i] = 0;
    }
  fill_tile<kDim, W::kRows, false>(q_tile, Q + head + size_t(first) * head_dim, seq_len - first,
                                   head_dim);
  __syncthreads();
  uint32_t q[W::kTiles][kDim / 16][4];
  if constexpr (TENSOR_CORES)
#pragma unroll
    for (int t = 0; t < W::kTiles; ++t)
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step)
        load_matrices(q[t][step],
                      q_tile + place<kDim>(warp_row + t * 16 + lane % 16, step * 2 + lane / 16));

  const auto fill = [&](int tile) {
    constexpr bool kAhead = DOUBLE_BUFFERING != 0;
    const uint32_t to = buffers + (kAhead ? tile % 2 : 0) * 2 * W::kTileBytes;
    const size_t from = head + size_t(tile) * BLOCK_K * head_dim;
    const int rows = seq_len - tile * BLOCK_K;
    fill_tile<kDim, BLOCK_K, kAhead>(to, K + from, rows, head_dim);
    fill_tile<kDim, BLOCK_K, kAhead>(to + W::kTileBytes, V + from, rows, head_dim);
  };

#pragma unroll 1
  for (int walk = ONLINE_SOFTMAX ? 1 : 0; walk < 2; ++walk) {  // 0: for the maxima alone
    if constexpr (DOUBLE_BUFFERING) {
      __syncthreads();  // of the walk before, all is read
      fill(0);
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      if constexpr (DOUBLE_BUFFERING) {
        wait_for_copies();
        __syncthreads();  // the tile is there for all, and nobody reads the one before it any more
        if (tile + 1 < tiles) fill(tile + 1);
      } else {
        __syncthreads();
        fill(tile);
        __syncthreads();
      }
      const uint32_t k_tile = buffers + (DOUBLE_BUFFERING ? tile % 2 : 0) * 2 * W::kTileBytes;
#pragma unroll 1
      for (int part = 0; part < BLOCK_K; part += kPart) {
        const int key = tile * BLOCK_K + part;
        if (key >= keys || (skips && key >= row + W::kTiles * 16)) break;
        w.multiply_keys(q_tile, k_tile, warp_row, part, q);
        if (key + kPart > (causal ? min(seq_len, row + 1) : seq_len))
          w.forbid(row, key, seq_len, causal);
        if (ONLINE_SOFTMAX || walk == 0) w.raise_tops(unit);
        if (walk == 0) continue;
        w.weigh(unit);
        w.add_values(k_tile + W::kTileBytes, part);
      }
    }
  }
  w.write(O + head, q_tile, warp_row, row, seq_len, head_dim);
}

// A warp for each row: 32 keys at a time, a lane has one of them, and later columns of O.
__global__ void __launch_bounds__(kThreads, 16 / WARPS)
    attention_rows(const half* Q, const half* K, const half* V, half* O, int seq_len, int head_dim,
                   unsigned rows, bool causal) {
  constexpr int kColumns = 8;  // of a lane: head_dim up to 256
  const unsigned at = blockIdx.x * WARPS + threadIdx.x / 32;
  if (at >= rows) return;
  const int lane = int(threadIdx.x) % 32, i = int(at % unsigned(seq_len));
  const size_t head = size_t(at - i) * head_dim;
  const half* q = Q + size_t(at) * head_dim;
  const float unit = rsqrtf(float(head_dim)) * 1.44269504f;
  const int visible = causal ? i + 1 : seq_len;
  const int keys = CAUSAL_SKIPPING ? visible : seq_len;
  float out[kColumns] = {}, top = -INFINITY, sum = 0;
  for (int walk = ONLINE_SOFTMAX ? 1 : 0; walk < 2; ++walk)
    for (int first = 0; first < keys; first += 32) {
      const int count = min(32, keys - first);
      float score = 0;
      if constexpr (COALESCING) {  // all lanes read one key
        for (int n = 0; n < count; ++n) {
          const half* k = K + head + size_t(first + n) * head_dim;
          float part = 0;
          for (int d = lane; d < head_dim; d += 32)
            part = fmaf(__half2float(q[d]), __half2float(k[d]), part);
          for (int other = 16; other > 0; other /= 2) part += __shfl_xor_sync(kAll, part, other);
          if (n == lane) score = part;
        }
      } else if (lane < count) {  // each lane reads its own
        const half* k = K + head + size_t(first + lane) * head_dim;
        for (int d = 0; d < head_dim; ++d)
          score = fmaf(__half2float(q[d]), __half2float(k[d]), score);
      }
      score = first + lane < visible ? score * unit : -INFINITY;
      if (ONLINE_SOFTMAX || walk == 0) {
        float now = fmaxf(top, score);
        for (int other = 16; other > 0; other /= 2)
          now = fmaxf(now, __shfl_xor_sync(kAll, now, other));
        const float shrink = power_of_two(top - now);
        top = now;
        if (walk == 0) continue;
        sum *= shrink;
        for (int c = 0; c < kColumns; ++c) out[c] *= shrink;
      }
      const float weight = power_of_two(score - top);
      sum += weight;
      for (int n = 0; n < count; ++n) {
        const float w = __shfl_sync(kAll, weight, n);
        const half* v = V + head + size_t(first + n) * head_dim;
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (lane + c * 32 < head_dim) out[c] = fmaf(w, __half2float(v[lane + c * 32]), out[c]);
      }
    }
  for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(kAll, sum, other);
#pragma unroll
  for (int c = 0; c < kColumns; ++c)
    if (lane + c * 32 < head_dim)
      O[size_t(at) * head_dim + lane + c * 32] = __float2half(__fdividef(out[c], sum));
}

template <int kDim>
static void launch_tiles(const half* Q, const half* K, const half* V, half* O, int heads,
                         int seq_len, int head_dim, bool causal, cudaStream_t stream) {
  using W = Warp<kDim>;
  const int row_tiles = (seq_len + W::kRows - 1) / W::kRows;
  cudaFuncSetAttribute(attention_tiles<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       W::kSharedBytes);
  attention_tiles<kDim>
      <<<unsigned(heads) * unsigned(row_tiles), kThreads, W::kSharedBytes, stream>>>(
          Q, K, V, O, seq_len, head_dim, row_tiles, causal);
}

static bool fits_tiles(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

static void launch_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                             int heads, int seq_len, int head_dim, bool causal,
                             cudaStream_t stream) {
  const bool tiles = TILING && head_dim % 8 == 0 && head_dim <= 128 && fits_tiles(Q) &&
                     fits_tiles(K) && fits_tiles(V) && fits_tiles(O);
  if (tiles && head_dim <= 64) {
    launch_tiles<64>(Q, K, V, O, batch * heads, seq_len, head_dim, causal, stream);
  } else if (tiles) {
    launch_tiles<128>(Q, K, V, O, batch * heads, seq_len, head_dim, causal, stream);
  } else {
    const unsigned rows = unsigned(batch) * unsigned(heads) * unsigned(seq_len);
    attention_rows<<<(rows + WARPS - 1) / WARPS, kThreads, 0, stream>>>(Q, K, V, O, seq_len,
                                                                        head_dim, rows, causal);
  }
}
// EVOLVE-BLOCK-END

// What is called. Its name and its arguments stay.
extern "C" void run_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal,
                              cudaStream_t stream) {
  launch_attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal, stream);
}
