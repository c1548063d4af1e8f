#!/usr/bin/env python3
"""Writes the library's own kernel as one program of `run_attention`, for the catalogue.

    ./make_library_program.py wgmma                 # catalogue/library_wgmma.cu
    ./make_library_program.py mma --head-dim 128 -o mine.cu

The program has all of the kernel's headers in its block and needs no other file: `attune judge` and
`attune evolve` take it like any other. It is for one head dimension, and a call with another one
fails. `mma` needs 8.0. `wgmma` needs 9.0 (Hopper), and makes its tensor maps on the device, because
a program may not ask the driver for them.
"""

import argparse
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[1] / "kernels"

# What the library would choose for many long rows of fp16 (src/select), by head dimension and
# causal limit.
CONFIGS = {
    ("mma", 64, False): ".warps_q = 4, .warp_rows = 32, .block_k = 128, .blocks_sm = 2",
    ("mma", 64, True): ".warps_q = 4, .warp_rows = 32, .block_k = 128, .blocks_sm = 2",
    ("mma", 128, False): ".warps_q = 4, .warp_rows = 32, .block_k = 64, .blocks_sm = 1",
    ("mma", 128, True): ".warps_q = 4, .warp_rows = 32, .block_k = 64, .blocks_sm = 1",
    ("wgmma", 64, False): ".warpgroups = 4, .block_k = 64, .stages = 4, .q_buffers = 2, "
    ".maxima = RowMaxima::first, .sums = RowSums::tensor, .early_exps = EARLY_EXPS, "
    ".schedule = kPersistent",
    ("wgmma", 64, True): ".warpgroups = 4, .block_k = 64, .stages = 4, .q_buffers = 2, "
    ".maxima = RowMaxima::first, .sums = RowSums::tensor, .early_exps = 2, .schedule = kDynamic",
    ("wgmma", 128, False): ".block_k = 128, .q_buffers = 2, .flat = true, "
    ".maxima = RowMaxima::first, .sums = RowSums::tensor, .early_exps = EARLY_EXPS, "
    ".schedule = kPersistent, .producer_registers = 40",
    ("wgmma", 128, True): ".block_k = 64, .stages = 4, .q_buffers = 2, .turn = kExpTurn, "
    ".maxima = RowMaxima::first, .sums = RowSums::tensor, .schedule = kDynamic, "
    ".producer_registers = 40",
}

HEAD = """\
// The {rung} kernel of Attune, made by make_library_program.py: the headers in one file, and
// at the end what the library's host side does. head_dim {dim} alone; other calls fail.{note}
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

// EVOLVE-BLOCK-START attention
#pragma nv_diag_suppress 177  // not every constant is used
"""

TAIL = """// EVOLVE-BLOCK-END

extern "C" void run_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                              int heads, int seq_len, int head_dim, bool causal,
                              cudaStream_t stream) {
  launch_attention(Q, K, V, O, batch, heads, seq_len, head_dim, causal, stream);
}
"""

# What both rungs are told: sizes, pointers, and how block numbers are taken apart.
ARGUMENTS = """
// Under a causal limit the long tiles of many heads go first; without one, heads follow each other.
static BlockDivisors block_divisors(const Problem& p, int64_t heads, int64_t tiles_of_head,
                                    int64_t group_bytes) {
  const int64_t head_bytes = p.seq_k * (p.dim + p.dim_v) * 2;
  int64_t head_group = p.causal ? group_bytes / head_bytes : 1;
  head_group = head_group < 1 ? 1 : head_group > heads ? heads : head_group;
  while (heads % head_group != 0) --head_group;  // groups of one size
  return {Divisor(1), Divisor(uint32_t(head_group * tiles_of_head)), Divisor(uint32_t(head_group)),
          Divisor(uint32_t(p.heads_q)), Divisor(1)};
}

template <int BlockQ>
static KernelArgs arguments(const half* Q, const half* K, const half* V, half* O, int batch,
                            int heads, int seq_len, bool causal, int64_t group_bytes) {
  KernelArgs args;
  Problem& p = args.problem;
  p.dtype = DType::f16;
  p.batch = batch;
  p.heads_q = p.heads_kv = heads;
  p.seq_q = p.seq_k = seq_len;
  p.dim = p.dim_v = kDim;
  p.causal = causal;
  const int64_t head = int64_t{seq_len} * kDim;
  const auto view = [&](const half* data) {
    return View{const_cast<half*>(data), head * heads, head, kDim};
  };
  args.params.q = view(Q);
  args.params.k = view(K);
  args.params.v = view(V);
  args.params.out = view(O);
  args.params.scale = 1 / sqrtf(float(kDim));
  const int64_t tiles_of_head = ceil_div(seq_len, BlockQ), all = int64_t{batch} * heads;
  args.blocks.divisors = block_divisors(p, all, tiles_of_head, group_bytes);
  args.blocks.tiles = uint32_t(all * tiles_of_head);
  args.params.rows_q = args.params.rows_k = seq_len;
  return args;
}
"""

MMA = """
template <bool Causal>
constexpr Problem kProblem{{.dtype = DType::f16, .dim = kDim, .dim_v = kDim, .causal = Causal}};
template <bool Causal>
constexpr MmaConfig kConfig = Causal ? MmaConfig{{{causal}}}
                                     : MmaConfig{{{full}}};
static_assert(*invalid_reason(kConfig<false>, kProblem<false>, arch_of(80)) == '\\0');
static_assert(*invalid_reason(kConfig<true>, kProblem<true>, arch_of(80)) == '\\0');

template <bool Causal>
__global__ void __launch_bounds__(kConfig<Causal>.threads(), kConfig<Causal>.blocks_sm)
    attune_mma(const __grid_constant__ KernelArgs args) {{
  mma_forward<kProblem<Causal>, kConfig<Causal>>(args);
}}
{arguments}
template <bool Causal>
static void launch(const half* Q, const half* K, const half* V, half* O, int batch, int heads,
                   int seq_len, cudaStream_t stream) {{
  constexpr MmaConfig kBest = kConfig<Causal>;
  constexpr int kBytes = smem_bytes(kBest, kProblem<Causal>);
  const KernelArgs args =
      arguments<kBest.block_q()>(Q, K, V, O, batch, heads, seq_len, Causal, 30000000);
  cudaFuncSetAttribute(attune_mma<Causal>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  attune_mma<Causal><<<args.blocks.tiles, kBest.threads(), kBytes, stream>>>(args);
}}
"""

WGMMA = """
template <bool Causal>
constexpr Problem kProblem{{.dtype = DType::f16, .dim = kDim, .dim_v = kDim, .causal = Causal}};
template <bool Causal>
constexpr WgmmaConfig kConfig = Causal ? WgmmaConfig{{{causal}}}
                                       : WgmmaConfig{{{full}}};
static_assert(*invalid_reason(kConfig<false>, kProblem<false>, arch_of(90)) == '\\0');
static_assert(*invalid_reason(kConfig<true>, kProblem<true>, arch_of(90)) == '\\0');

// What TMA knows of a tensor is the driver's secret, but for instructions that set its fields one
// by one. It begins as zeros, 128 bytes in shared memory. The tensor has four dimensions,
// [batch][heads][rows][kDim], of which a box takes 64 columns of some rows.
__device__ inline void set_map(uint32_t map, const View& v, const Problem& p, int box_rows) {{
  const uint64_t strides[3] = {{uint64_t(v.stride_s) * 2, uint64_t(v.stride_h) * 2,
                               uint64_t(v.stride_b) * 2}};
  const uint32_t sizes[4] = {{kDim, uint32_t(p.seq_q), uint32_t(p.heads_q), uint32_t(p.batch)}};
  const uint32_t box[4] = {{64, uint32_t(box_rows), 1, 1}};
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(map),
               "l"(v.data)
               : "memory");
  // The number of dimensions less one.
  asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 3;" ::"r"(map) : "memory");
{dimensions}  // fp16, without interleaving, rows of 128 bytes swizzled, zeros outside
  asm volatile(
      "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], 6;\\n"
      "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0;\\n"
      "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3;\\n"
      "tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;" ::"r"(map)
      : "memory");
}}

// Every block has maps of its own in global memory: made by four of its warps, then seen by all.
constexpr unsigned kMostBlocks = 8192;
__device__ __align__(128) TensorMaps all_maps[kMostBlocks];
__device__ uint32_t next_tile[64];  // a counter, of tiles that have been taken

__device__ inline void make_maps(TensorMaps& maps, const KernelArgs& args, int block_k) {{
  extern __shared__ __align__(1024) uint8_t raw[];
  uint32_t(*made)[32] = reinterpret_cast<uint32_t(*)[32]>(raw);
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp < 4) {{
    const uint32_t map = ptx::shared_address(made[warp]);
    TensorMap* to = warp == 0 ? &maps.q : warp == 1 ? &maps.k : warp == 2 ? &maps.v : &maps.out;
    made[warp][lane] = 0;
    __syncwarp();
    if (lane == 0) {{
      const Params& a = args.params;
      const View& v = warp == 0 ? a.q : warp == 1 ? a.k : warp == 2 ? a.v : a.out;
      set_map(map, v, args.problem, warp == 1 || warp == 2 ? block_k : 64);
    }}
    __syncwarp();
    asm volatile(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        "[%0], [%1], 128;" ::"l"(to),
        "r"(map)
        : "memory");
  }}
  ptx::fence_proxy_async_shared();  // what lies there next is written by TMA
  __syncthreads();
  for (const TensorMap* map : {{&maps.q, &maps.k, &maps.v, &maps.out}})
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}}

template <bool Causal>
__global__ void __launch_bounds__(kConfig<Causal>.threads(), 1)
    attune_wgmma(const __grid_constant__ KernelArgs args) {{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // not in the text for later GPUs that the compiler may add
  TensorMaps& maps = all_maps[blockIdx.x];
  make_maps(maps, args, kConfig<Causal>.block_k);
  wgmma_forward<kProblem<Causal>, kConfig<Causal>>(args, maps);
#endif
}}
{arguments}
template <bool Causal>
static void launch(const half* Q, const half* K, const half* V, half* O, int batch, int heads,
                   int seq_len, cudaStream_t stream) {{
  constexpr WgmmaConfig kBest = kConfig<Causal>;
  constexpr int kBytes = smem_bytes(kBest, kProblem<Causal>);
  KernelArgs args = arguments<kBest.block_q()>(Q, K, V, O, batch, heads, seq_len, Causal,
                                               int64_t{{16}} << 20);
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const uint32_t tiles = args.blocks.tiles, most = uint32_t(ceil_div(tiles, kMostTiles / 2));
  const uint32_t fit = uint32_t(processors) > most ? uint32_t(processors) : most;
  const uint32_t blocks = kBest.schedule == kGrid || tiles < fit ? tiles : fit;
  if constexpr (kBest.schedule == kDynamic) {{
    cudaGetSymbolAddress(&args.params.workspace, next_tile);
    cudaMemsetAsync(args.params.workspace, 0, 4, stream);
  }}
  cudaFuncSetAttribute(attune_wgmma<Causal>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  // A grid of more blocks than there are maps is none, and fails.
  const uint32_t grid = blocks > kMostBlocks ? 0 : blocks;
  attune_wgmma<Causal><<<grid, kBest.threads(), kBytes, stream>>>(args);
}}
"""

LAUNCH = """
}  // namespace attune

static void launch_attention(const half* Q, const half* K, const half* V, half* O, int batch,
                             int heads, int seq_len, int head_dim, bool causal,
                             cudaStream_t stream) {
  if (head_dim != attune::kDim) batch = 0;  // no blocks: the launch fails
  const auto launch = causal ? attune::launch<true> : attune::launch<false>;
  launch(Q, K, V, O, batch, heads, seq_len, stream);
}
"""


def inlined(path, seen):
    """A header with those that it includes, each once."""
    path = path.resolve()
    if path in seen:
        return ""
    seen.add(path)
    text = ""
    for line in path.read_text().splitlines(keepends=True):
        if match := re.match(r'#include "(.*)"', line):
            text += inlined(path.parent / match[1], seen)
        elif not line.startswith("#pragma once"):
            text += line
    return text


def for_nvcc(text):
    """Functions that the library's compiler takes as the device's anyway are marked as such."""
    start = r"^(\s*)((?:static )?constexpr [^=;(]*\b\w+\((?!.*= default))"
    function = re.compile(start, re.MULTILINE)
    return function.sub(r"\1ATTUNE_HD \2", text)


def wgmma_struct(n, turned):
    """ptx::Wgmma<n, f16, turned>: the instruction names every register of its sums."""
    count = n // 2
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    registers = "{" + ",".join(f"%{i}" for i in range(count)) + "}"

    def function(name, parameter, a, operands, after, flags):
        last = count + after
        return (
            f"  static __device__ void {name}(float (&d)[{count}], {parameter}, uint64_t b,\n"
            "                           int add) {\n    asm volatile(\n"
            f'        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{last + 1}, 0;\\n"\n'
            f'        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {registers}, {a}, '
            f'%{last}, p, {flags}, {int(turned)};\\n}}"\n'
            f'        : {sums}\n        : {operands}, "l"(b), "r"(add));\n  }}\n'
        )

    in_registers = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}"
    four = ", ".join(f'"r"(a[{i}])' for i in range(4))
    return (
        f"template <>\nstruct Wgmma<{n}, DType::f16, {str(turned).lower()}> {{\n"
        + function("ss", "uint64_t a", f"%{count}", '"l"(a)', 1, "1, 1, 0")
        + function("rs", "const uint32_t (&a)[4]", in_registers, four, 4, "1, 1")
        + "};\n"
    )


def map_dimensions():
    line = '  asm volatile("tensormap.replace.tile.{}.shared::cta.b1024.{} [%0], {}, %1;"\n'
    line += '               ::"r"(map),\n'
    line += '               "{}"({})\n               : "memory");\n'
    text = ""
    for d in range(4):
        text += line.format("box_dim", "b32", d, "r", f"box[{d}]")
        text += line.format("global_dim", "b32", d, "r", f"sizes[{d}]")
        text += line.format("element_stride", "b32", d, "r", "1")
        if d < 3:
            text += line.format("global_stride", "b64", d, "l", f"strides[{d}]")
    return text


def program(rung, dim):
    full, causal = CONFIGS[rung, dim, False], CONFIGS[rung, dim, True]
    note = "\n// 9.0 alone." if rung == "wgmma" else " 8.0 and up."
    text = HEAD.format(rung=rung, dim=dim, note=note)
    if rung == "wgmma":
        text += (
            "constexpr int EARLY_EXPS = 6;  // EVOLVE-PARAM EARLY_EXPS {2,4,6} implementation: "
            "eighths\n"
        )
    seen = set()
    if rung == "wgmma":
        text += for_nvcc(inlined(KERNELS / "ptx" / "wgmma.h", seen))
        keys = {int(re.search(r"block_k = (\d+)", config)[1]) for config in (full, causal)}
        text += "\nnamespace attune::ptx {\n"
        text += "".join(wgmma_struct(n, False) for n in sorted(keys)) + wgmma_struct(dim + 8, True)
        text += "}  // namespace attune::ptx\n\n"
        text += for_nvcc(inlined(KERNELS / "sm90" / "wgmma.cuh", seen))
    else:
        text += for_nvcc(inlined(KERNELS / "sm80" / "mma.cuh", seen))
    text += f"\nnamespace attune {{\n\nconstexpr int kDim = {dim};\n"
    template = WGMMA if rung == "wgmma" else MMA
    text += template.format(
        full=full, causal=causal, arguments=ARGUMENTS, dimensions=map_dimensions()
    )
    return text + LAUNCH + TAIL


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rung", choices=("mma", "wgmma"))
    parser.add_argument("--head-dim", type=int, choices=(64, 128), default=64)
    parser.add_argument("-o", "--output", type=Path, help="default: catalogue/library_RUNG.cu")
    options = parser.parse_args()
    output = options.output or HERE / "catalogue" / f"library_{options.rung}.cu"
    output.write_text(program(options.rung, options.head_dim))
    print(f"{output}: {len(output.read_text().splitlines())} lines")


if __name__ == "__main__":
    main()
