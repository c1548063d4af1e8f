// Attention on tensor cores: both products by mma.sync (m16n8k16, sums in fp32), whose operands
// come out of shared memory by ldmatrix. Scores and weights stay in registers. head_dim: multiples
// of 8 up to 128. 8.0 and up.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// EVOLVE-BLOCK-START attention
constexpr int WARPS = 4;       // EVOLVE-PARAM WARPS {4,8} hardware: of a block
constexpr int TILE_KEYS = 64;  // EVOLVE-PARAM TILE_KEYS {32,64} hardware: keys of a tile

constexpr int kThreads = WARPS * 32;
constexpr unsigned kAll = 0xffffffffu;  // every lane of a warp

// 2^x; 2^-inf is 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c += a b: a is 16x16, b 16x8. Lane l, with g = l / 4 and q = l % 4, holds
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

__device__ inline void store_16(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ inline uint32_t pack(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A tile's rows are kDim halves long, in chunks of 16 bytes. Chunk c of row r lies in place c ^ r
// (its last three bits): eight rows of one column of chunks lie in eight different banks.
template <int kDim>
__device__ inline uint32_t place(int row, int chunk) {
  return uint32_t(row * kDim * 2 + (chunk ^ row % 8) * 16);
}

// Rows of a matrix into a tile; what is outside of the matrix becomes zero.
template <int kDim, int kRows>
__device__ void fill_tile(uint32_t tile, const half* from, int rows, int head_dim) {
  constexpr int kChunks = kDim / 8;
  for (int n = int(threadIdx.x); n < kRows * kChunks; n += kThreads) {
    const int row = n / kChunks, chunk = n % kChunks;
    const bool inside = row < rows && chunk * 8 < head_dim;
    const half* source = inside ? from + size_t(row) * head_dim + chunk * 8 : from;
    store_16(tile + place<kDim>(row, chunk),
             inside ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0));
  }
}

// A block takes some rows of a head and walks over its keys, tile by tile. Each warp has 16 rows of
// its own, of which lane l owns g = l / 4 and g + 8: scores, weights and O stay in registers.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    attention_tiles(const half* Q, const half* K, const half* V, half* O, int seq_len, int head_dim,
                    int row_tiles, bool causal) {
  constexpr int kParts = 1, kRows = WARPS * 16;
  constexpr int kTileBytes = TILE_KEYS * kDim * 2, kColumns = kDim / 4;
  extern __shared__ __align__(256) unsigned char memory[];
  const uint32_t q_tile = uint32_t(__cvta_generic_to_shared(memory));
  const uint32_t buffers = q_tile + kRows * kDim * 2;
  const int lane = int(threadIdx.x) % 32, warp_row = int(threadIdx.x) / 32 * kParts * 16;
  const int first = int(blockIdx.x) % row_tiles * kRows, row = first + warp_row, keys = seq_len;
  const size_t head = size_t(int(blockIdx.x) / row_tiles) * seq_len * head_dim;
  const int tiles = (keys + TILE_KEYS - 1) / TILE_KEYS;
  const float unit = rsqrtf(float(head_dim)) * 1.44269504f;  // of scores, to powers of two

  float out[kParts][2][kColumns], top[kParts][2], sum[kParts][2];
#pragma unroll
  for (int t = 0; t < kParts; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[t][r] = -INFINITY, sum[t][r] = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) out[t][r][i] = 0;
    }
  fill_tile<kDim, kRows>(q_tile, Q + head + size_t(first) * head_dim, seq_len - first, head_dim);
  __syncthreads();
  uint32_t q[kParts][kDim / 16][4];
#pragma unroll
  for (int t = 0; t < kParts; ++t)
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      load_matrices(q[t][step],
                    q_tile + place<kDim>(warp_row + t * 16 + lane % 16, step * 2 + lane / 16));

#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int key = tile * TILE_KEYS;
    const uint32_t k_tile = buffers, v_tile = buffers + kTileBytes;
    __syncthreads();  // nobody reads the tiles before any more
    fill_tile<kDim, TILE_KEYS>(k_tile, K + head + size_t(key) * head_dim, seq_len - key, head_dim);
    fill_tile<kDim, TILE_KEYS>(v_tile, V + head + size_t(key) * head_dim, seq_len - key, head_dim);
    __syncthreads();
    const int at = lane;

    // Scores of TILE_KEYS keys. A load brings 16 keys and 16 columns.
    float scores[kParts][TILE_KEYS / 8][4] = {};
    const uint32_t k_at = k_tile + place<kDim>(at % 8 + at / 16 * 8, at / 8 % 2);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
      for (int n = 0; n < TILE_KEYS / 8; n += 2) {
        uint32_t k[4];
        load_matrices(k, (k_at ^ step * 32) + n * 8 * kDim * 2);
#pragma unroll
        for (int t = 0; t < kParts; ++t) {
          multiply_add(scores[t][n], q[t][step], k[0], k[1]);
          multiply_add(scores[t][n + 1], q[t][step], k[2], k[3]);
        }
      }
    if (key + TILE_KEYS > (causal ? min(seq_len, row + 1) : seq_len))
#pragma unroll
      for (int t = 0; t < kParts; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = row + t * 16 + lane / 4 + e / 2 * 8;
          const int end = causal ? min(seq_len, i + 1) : seq_len;
#pragma unroll
          for (int n = 0; n < TILE_KEYS / 8; ++n)
            if (key + n * 8 + lane % 4 * 2 + e % 2 >= end) scores[t][n][e] = -INFINITY;
        }

        // Online softmax: four neighbouring lanes share a row. The first maximum is finite, because
        // every row sees the first key. What was summed before shrinks where the maximum grows.
#pragma unroll
    for (int t = 0; t < kParts; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float now = -INFINITY;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; ++n)
          now = fmaxf(now, fmaxf(scores[t][n][2 * r], scores[t][n][2 * r + 1]));
        now = fmaxf(now, __shfl_xor_sync(kAll, now, 1));
        now = fmaxf(top[t][r], fmaxf(now, __shfl_xor_sync(kAll, now, 2)) * unit);
        const float shrink = power_of_two(top[t][r] - now);
        top[t][r] = now;
        sum[t][r] *= shrink;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) out[t][r][i] *= shrink;
#pragma unroll
        for (int n = 0; n < TILE_KEYS / 8; ++n)
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; ++e) {
            scores[t][n][e] = power_of_two(fmaf(scores[t][n][e], unit, -now));
            sum[t][r] += scores[t][n][e];
          }
      }

    // O += P V. The weights are where multiply_add wants them: its c is the next one's a.
    const uint32_t v_at = v_tile + place<kDim>(at % 16, at / 16);
#pragma unroll
    for (int step = 0; step < TILE_KEYS / 16; ++step) {
      uint32_t p[kParts][4];
#pragma unroll
      for (int t = 0; t < kParts; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float(&from)[4] = scores[t][step * 2 + e / 2];
          p[t][e] = pack(from[e % 2 * 2], from[e % 2 * 2 + 1]);
        }
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t v[4];
        load_transposed(v, (v_at ^ n * 16) + step * 16 * kDim * 2);
#pragma unroll
        for (int t = 0; t < kParts; ++t)
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            float(&o0)[kColumns] = out[t][0], (&o1)[kColumns] = out[t][1];
            const int i = (n + m) * 2;
            float c[4] = {o0[i], o0[i + 1], o1[i], o1[i + 1]};
            multiply_add(c, p[t], v[2 * m], v[2 * m + 1]);
            o0[i] = c[0], o0[i + 1] = c[1], o1[i] = c[2], o1[i + 1] = c[3];
          }
      }
    }
  }

#pragma unroll
  for (int t = 0; t < kParts; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = sum[t][r];
      all += __shfl_xor_sync(kAll, all, 1);
      all += __shfl_xor_sync(kAll, all, 2);
      const float factor = __fdividef(1, all);
      const int i = row + t * 16 + lane / 4 + r * 8;
      if (i >= seq_len) continue;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n)
        if (n * 8 < head_dim)
          *reinterpret_cast<uint32_t*>(O + head + size_t(i) * head_dim + n * 8 + lane % 4 * 2) =
              pack(out[t][r][n * 2] * factor, out[t][r][n * 2 + 1] * factor);
    }
}

template <int kDim>
static void launch_tiles(const half* Q, const half* K, const half* V, half* O, int heads,
                         int seq_len, int head_dim, bool causal, cudaStream_t stream) {
  constexpr int kRows = WARPS * 16;
  constexpr int kBytes = (kRows + 2 * TILE_KEYS) * kDim * 2;  // Q, K and V
  const int row_tiles = (seq_len + kRows - 1) / kRows;
  cudaFuncSetAttribute(attention_tiles<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  attention_tiles<kDim><<<unsigned(heads) * unsigned(row_tiles), kThreads, kBytes, stream>>>(
      Q, K, V, O, seq_len, head_dim, row_tiles, causal);
}

static void launch_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                             int heads, int seq_len, int head_dim, bool causal,
                             cudaStream_t stream) {
  const auto launch = head_dim <= 64 ? launch_tiles<64> : launch_tiles<128>;
  launch(Q, K, V, O, batch * heads, seq_len, head_dim, causal, stream);
}
// EVOLVE-BLOCK-END

extern "C" void run_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal,
                              cudaStream_t stream) {
  launch_attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal, stream);
}
