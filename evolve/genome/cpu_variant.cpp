// A CPU candidate's printed form, and the machine that it would run on.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "evolve/compile/tile_compile.hpp"
#include "evolve/genome/genome.hpp"
#include "src/cpu/fused.hpp"

namespace attune::evolve {
namespace {

// What the kernel says of the first processor's data cache of a level; 0: nothing.
int64_t cache_from_sys(int level) {
  for (int n = 0; n < 8; ++n) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", n);
    std::ifstream level_file(folder + "level"), type_file(folder + "type");
    std::ifstream size_file(folder + "size");
    int of = 0;
    int64_t size = 0;
    std::string type, unit;
    if (!(level_file >> of) || !(type_file >> type) || !(size_file >> size)) continue;
    size_file >> unit;
    if (of == level && type != "Instruction")
      return size * (unit == "K" ? 1 << 10 : unit == "M" ? 1 << 20 : 1);
  }
  return 0;
}

int64_t cache_bytes(int name, int level, int64_t otherwise) {
  if (const long size = sysconf(name); size > 0) return size;
  const int64_t size = cache_from_sys(level);
  return size > 0 ? size : otherwise;
}

}  // namespace

std::string to_string(const CpuVariant& variant) {
  if (!variant.fused) return "naive";
  return "fused." + cpu::to_string(cpu::IsaConfig{variant.isa, variant.config});
}

std::optional<CpuVariant> parse_cpu_variant(std::string_view text) {
  constexpr std::string_view kPrefix = "fused.";
  if (text == "naive") return CpuVariant{};
  if (!text.starts_with(kPrefix)) return std::nullopt;
  std::optional<cpu::IsaConfig> of = cpu::parse_isa_config(text.substr(kPrefix.size()));
  if (!of) return std::nullopt;
  return CpuVariant{.fused = true, .config = of->config, .isa = std::move(of->isa)};
}

// The instruction set is switched for the whole process while its shape is asked for: before
// anything runs.
CpuMachine this_cpu(int threads) {
  CpuMachine machine;
  machine.isas = cpu::isa_names();
  machine.threads = std::max(threads, 1);
  const std::string before = cpu::isa_name();
  for (const std::string& name : machine.isas)
    if (cpu::force_isa(name)) machine.archs[name] = cpu::arch();
  cpu::force_isa(before);
#ifdef _SC_LEVEL1_DCACHE_SIZE
  machine.l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 1, machine.l1_bytes);
  machine.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 2, machine.l2_bytes);
#endif
  machine.why_not = tile_compiler().why_not;
  machine.compiles = machine.why_not.empty();
  return machine;
}

}  // namespace attune::evolve
