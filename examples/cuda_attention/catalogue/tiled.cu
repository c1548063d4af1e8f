// Attention in tiles: a block brings a tile of K and V into shared memory, and all of its rows use
// it from there. The softmax is the textbook's: the maxima of the rows first, then the weights, so
// K is walked over twice. head_dim up to 128.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// EVOLVE-BLOCK-START attention
constexpr int TILE_Q = 64;  // EVOLVE-PARAM TILE_Q {32,64,128} hardware: query rows of a block
constexpr int TILE_K = 32;  // EVOLVE-PARAM TILE_K {16,32} hardware: keys of a tile
constexpr unsigned kAll = 0xffffffffu;  // every lane of a warp

// 2^x; 2^-inf is 0.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A tile of K or V as float, by all threads; what is outside of the matrix becomes zero.
template <int kDim>
__device__ void fill_tile(float (*tile)[kDim], const half* from, int rows, int head_dim) {
  for (int n = int(threadIdx.x); n < TILE_K * kDim; n += int(blockDim.x)) {
    const int row = n / kDim, d = n % kDim;
    const bool inside = row < rows && d < head_dim;
    tile[row][d] = inside ? __half2float(from[size_t(row) * head_dim + d]) : 0;
  }
}

// kDim / 32 neighbouring threads share a row: each has 32 columns of Q and of O, in groups of four
// that alternate among them.
template <int kDim>
__global__ void attention_tiles(const half* Q, const half* K, const half* V, half* O, int seq_len,
                                int head_dim, int row_tiles, bool causal) {
  constexpr int kShare = kDim / 32;
  __shared__ __align__(16) float k_tile[TILE_K][kDim];
  __shared__ __align__(16) float v_tile[TILE_K][kDim];
  const int share = int(threadIdx.x) % kShare;
  const int row = int(blockIdx.x) % row_tiles * TILE_Q + int(threadIdx.x) / kShare;
  const size_t head = size_t(int(blockIdx.x) / row_tiles) * seq_len * head_dim;
  const auto column = [&](int i) { return (i / 4 * kShare + share) * 4 + i % 4; };
  const float unit = rsqrtf(float(head_dim)) * 1.44269504f;  // of scores, to powers of two
  const int visible = causal ? min(seq_len, row + 1) : seq_len;
  float q[32], out[32], top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const bool inside = row < seq_len && column(i) < head_dim;
    q[i] = inside ? __half2float(Q[head + size_t(row) * head_dim + column(i)]) * unit : 0;
    out[i] = 0;
  }
  const auto score = [&](int j) {
    float part = 0;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 k = *reinterpret_cast<const float4*>(&k_tile[j][column(i)]);
      part = fmaf(q[i], k.x, part);
      part = fmaf(q[i + 1], k.y, part);
      part = fmaf(q[i + 2], k.z, part);
      part = fmaf(q[i + 3], k.w, part);
    }
#pragma unroll
    for (int other = 1; other < kShare; other *= 2) part += __shfl_xor_sync(kAll, part, other);
    return part;
  };
  const auto add_value = [&](int j, float weight) {
    sum += weight;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(&v_tile[j][column(i)]);
      out[i] = fmaf(weight, v.x, out[i]);
      out[i + 1] = fmaf(weight, v.y, out[i + 1]);
      out[i + 2] = fmaf(weight, v.z, out[i + 2]);
      out[i + 3] = fmaf(weight, v.w, out[i + 3]);
    }
  };

  // The first walk finds the rows' maxima, the second one the weights: scores are computed twice,
  // and never stored.
  for (int walk = 0; walk < 2; ++walk)
    for (int first = 0; first < seq_len; first += TILE_K) {
      __syncthreads();  // nobody reads the tiles before any more
      fill_tile<kDim>(k_tile, K + head + size_t(first) * head_dim, seq_len - first, head_dim);
      if (walk == 1)
        fill_tile<kDim>(v_tile, V + head + size_t(first) * head_dim, seq_len - first, head_dim);
      __syncthreads();
      for (int j = 0; j < TILE_K; ++j) {
        const float product = score(j);  // by all threads of the row together
        const float s = first + j < visible ? product : -INFINITY;
        if (walk == 0)
          top = fmaxf(top, s);
        else
          add_value(j, power_of_two(s - top));
      }
    }
  if (row >= seq_len) return;
#pragma unroll
  for (int i = 0; i < 32; ++i)
    if (column(i) < head_dim)
      O[head + size_t(row) * head_dim + column(i)] = __float2half(__fdividef(out[i], sum));
}

static void launch_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                             int heads, int seq_len, int head_dim, bool causal,
                             cudaStream_t stream) {
  const int row_tiles = (seq_len + TILE_Q - 1) / TILE_Q;
  const unsigned blocks = unsigned(batch) * unsigned(heads) * unsigned(row_tiles);
  if (head_dim <= 64)
    attention_tiles<64>
        <<<blocks, TILE_Q * 2, 0, stream>>>(Q, K, V, O, seq_len, head_dim, row_tiles, causal);
  else
    attention_tiles<128>
        <<<blocks, TILE_Q * 4, 0, stream>>>(Q, K, V, O, seq_len, head_dim, row_tiles, causal);
}
// EVOLVE-BLOCK-END

extern "C" void run_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal,
                              cudaStream_t stream) {
  launch_attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal, stream);
}
