// How the fused CPU kernel computes. Block sizes, splits and thresholds are run-time fields; the
// register tile and the exp variant pick one of the prebuilt instances. The optimiser evolves this
// struct.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/problem.h"

namespace attune::cpu {

// A register tile is mr query rows by nv vectors; it serves both matrix products.
struct Tile {
  int mr, nv;
  bool operator==(const Tile&) const = default;
};

// The accumulators, one row of B vectors and a broadcast must fit the registers: 32 on AVX-512 and
// NEON, 16 on SSE4 and AVX2.
constexpr int registers_of(Tile t) { return t.mr * t.nv + t.nv + 1; }

// The prebuilt grid. The kernel can be any tile up to the largest; one that is not prebuilt is
// compiled when it is tried (evolve/compile/tile_compile.hpp).
inline constexpr Tile kTiles[] = {{4, 2}, {6, 2}, {4, 3}, {6, 4}, {8, 2}, {8, 3}, {12, 2}};
constexpr Tile kLargestTile = {16, 6};
constexpr bool is_prebuilt(Tile tile) {
  for (Tile t : kTiles)
    if (t == tile) return true;
  return false;
}
inline constexpr int kExpDegrees[] = {4, 5, 6};
constexpr int kMaxBlockK = 256;
constexpr int kMaxBlockQ = 1024;
// Floats from one row of scores to the next: room for whole panels; not a power of two, so that
// rows fall into different cache sets.
constexpr int kScoreStride = kMaxBlockK + 48;

struct CpuConfig {
  int mr = 6, nv = 4;   // register tile
  int exp_degree = 5;   // polynomial of exp2: 4 (3e-6 relative), 5 (2e-7), 6 (below rounding)
  int block_q = 192;    // query rows a task
  int block_k = 128;    // keys a step of the online softmax
  int splits = 0;       // parts of the key range; 0: as many as keep every thread busy
  int dot_rows = 2;     // tasks of at most this many rows read K in place instead of packing it
  bool pack_v = false;  // copy V blocks into panels, or read them in place where possible
  float rescale_threshold = 8;  // rescale only when the row maximum grew by more than this (log2)

  bool operator==(const CpuConfig&) const = default;
};

struct CpuArch {
  int lanes;      // floats a vector
  int registers;  // vector registers
};

// Empty when the config can run the problem on the machine, once its tile is compiled; else the
// reason.
constexpr const char* invalid_reason_compiled(const CpuConfig& c, const Problem& p,
                                              const CpuArch& arch) {
  if (c.mr < 1 || c.mr > kLargestTile.mr || c.nv < 1 || c.nv > kLargestTile.nv)
    return "mr is not in 1..16, or nv is not in 1..6";
  bool degree = false;
  for (int d : kExpDegrees) degree |= d == c.exp_degree;
  if (!degree) return "exp_degree is not 4, 5 or 6";
  if (c.exp_degree == 4 && p.dtype == DType::f32) return "exp_degree 4 is too coarse for fp32";
  if (registers_of({c.mr, c.nv}) > arch.registers)
    return "the register tile needs more registers than the ISA has";
  if (c.block_q < 1 || c.block_q > kMaxBlockQ) return "block_q is not in 1..1024";
  if (c.block_k < 1 || c.block_k > kMaxBlockK) return "block_k is not in 1..256";
  const int panel = c.nv * arch.lanes;
  if ((c.block_k + panel - 1) / panel * panel > kScoreStride)
    return "block_k in whole panels of nv vectors is longer than a row of scores";
  if (c.splits < 0 || c.splits > 1024) return "splits is not in 0..1024";
  if (c.dot_rows < 0 || c.dot_rows > 8) return "dot_rows is not in 0..8";
  if (!(c.rescale_threshold >= 0 && c.rescale_threshold <= 32))
    return "rescale_threshold is not in 0..32";
  if (p.dim < 1 || p.dim > kMaxHeadDim || p.dim_v < 1 || p.dim_v > kMaxHeadDim)
    return "a head dimension is not in 1..256";
  return "";
}

// The same for the library as it is built.
constexpr const char* invalid_reason(const CpuConfig& c, const Problem& p, const CpuArch& arch) {
  if (!is_prebuilt({c.mr, c.nv})) return "no prebuilt register tile mr x nv";
  return invalid_reason_compiled(c, p, arch);
}

// "mr6.nv4.exp5.bq192.bk128.sp0.dot2.pv0.rs8", and back.
std::string to_string(const CpuConfig& config);
std::optional<CpuConfig> parse_cpu_config(std::string_view text);

// A config for an instruction set, by Highway's name of it: "AVX2.mr6.nv2...". Without a name it is
// for the one in use. Each has one spelling.
struct IsaConfig {
  std::string isa;
  CpuConfig config;

  bool operator==(const IsaConfig&) const = default;
};
std::string to_string(const IsaConfig& config);
std::optional<IsaConfig> parse_isa_config(std::string_view text);

}  // namespace attune::cpu
