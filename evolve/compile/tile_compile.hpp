// Register tiles of the fused CPU kernel beyond those built into the library. The host's compiler
// makes one when it is tried, from the kernel's own sources, which travel in the tool as text.
#pragma once

#include <string>
#include <vector>

#include "evolve/compile/host_compile.hpp"
#include "evolve/genome/genome.hpp"
#include "src/cpu/fused_task.hpp"

namespace attune::evolve {

struct TileCompiler {
  HostCompiler compiler;
  std::vector<std::string> flags;
  std::string why_not;  // empty: it can
};
const TileCompiler& tile_compiler();  // of this machine, looked for once
TileCompiler tile_compiler_of(const HostCompiler& compiler);

// One tile for one instruction set. Only the element types that are asked for: each takes the
// compiler another second.
struct TileSpec {
  cpu::Tile tile;
  std::string isa;  // Highway's name of it
  std::vector<DType> dtypes;
};

// True when the library does not have the variant's tile.
inline bool needs_tile(const CpuVariant& variant) {
  return variant.fused && !cpu::is_prebuilt({variant.config.mr, variant.config.nv});
}

// The translation unit. The code is that of the library but for the tile: with the flags that the
// library is built with, so that what a tile is worth here it is worth there.
std::string tile_source(const TileSpec& spec);

Built build_tile(const TileSpec& spec, const TileCompiler& compiler, const std::string& folder,
                 double limit_seconds, const Stop& stop = {});

// What the library shows: its functions for an element type, null for one that it lacks.
using TileEntry = const cpu::IsaTable* (*)(DType dtype);
inline constexpr char kTileEntry[] = "attune_tile";

}  // namespace attune::evolve
