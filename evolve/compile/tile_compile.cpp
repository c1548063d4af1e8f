#include "evolve/compile/tile_compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "src/cpu/fused.hpp"
#include "src/jit/sha256.hpp"
#include "src/jit/source.hpp"

namespace attune::evolve {

// src/cpu/'s part of the kernel; made by the build.
extern const jit::Header kTileSources[];
extern const size_t kTileSourcesCount;

namespace {

namespace fs = std::filesystem;

// As in CMakeLists.txt: the floor on which Highway puts each instruction set.
#if defined(__x86_64__)
constexpr const char* kFloor[] = {"-msse4.2", "-maes", "-mpclmul"};
#else
constexpr const char* kFloor[] = {"-march=armv8-a+crypto"};
#endif

constexpr std::string_view kUnit = R"(// Register tile {mr} x {nv} of the fused kernel {digest}.
#include <hwy/detect_targets.h>
#undef HWY_TARGET
#define HWY_TARGET HWY_{isa}
#include "src/cpu/fused_inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attune::cpu::HWY_NAMESPACE {{
static_assert(registers_of({{{mr}, {nv}}}) <= kRegisters, "too few registers for the tile");

template <class T>
void RunTile(const FusedCall& call, const Task& task, void* scratch) {{
  TaskRunner<T, {mr}, {nv}>(call, task, scratch).Run();
}}
template <class T>
void CombineTile(const FusedCall& call, const Task* tasks, int splits, void* scratch) {{
  CombineRows<T>(call, tasks, splits, static_cast<float*>(scratch));
}}
template <class T>
const IsaTable* TileTable() {{
  static constexpr IsaTable table{{{{kLanes, kRegisters}}, ScratchBytes, RunTile<T>, CombineTile<T>,
                                  PartialFloats, nullptr, nullptr}};
  return &table;
}}

const IsaTable* TableOf(DType dtype) {{
  switch (dtype) {{
{cases}    default:
      return nullptr;
  }}
}}
}}  // namespace attune::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

extern "C" __attribute__((visibility("default"))) const attune::cpu::IsaTable* {entry}(
    attune::DType dtype) {{
  return attune::cpu::N_{isa}::TableOf(dtype);
}}
)";

const char* case_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "    case DType::f16:\n      return TileTable<F16>();\n";
    case DType::bf16:
      return "    case DType::bf16:\n      return TileTable<BF16>();\n";
    default:
      return "    case DType::f32:\n      return TileTable<float>();\n";
  }
}

// The sources under the paths by which they include each other.
const std::vector<std::pair<std::string, std::string>>& kernel_files() {
  static const auto files = [] {
    std::vector<std::pair<std::string, std::string>> all;
    for (size_t n = 0; n < kTileSourcesCount; ++n)
      all.emplace_back(fmt::format("src/cpu/{}", kTileSources[n].name), kTileSources[n].text);
    for (size_t n = 0; n < jit::kEmbeddedCount; ++n)
      if (std::string_view(jit::kEmbedded[n].name).ends_with(".h"))
        all.emplace_back(fmt::format("kernels/{}", jit::kEmbedded[n].name), jit::kEmbedded[n].text);
    return all;
  }();
  return files;
}

// With it a change of the sources is a change of the unit.
const std::string& kernel_digest() {
  static const std::string digest = [] {
    std::string all;
    for (const auto& [path, text] : kernel_files()) all += path + '\0' + text + '\0';
    return jit::hex(jit::sha256(all)).substr(0, 16);
  }();
  return digest;
}

// Where Highway may lie beside the compiler's own folders: in a source tree's bundle/, which has
// the tool in build/, and in the prefix of an installation.
std::vector<std::string> include_folders() {
  std::error_code error;
  const fs::path tool = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::string> folders = {""};
  if (error) return folders;
  for (const char* folder : {"../bundle/include", "../include"})
    if (fs::exists(tool / folder / "hwy/highway.h", error))
      folders.push_back(fs::weakly_canonical(tool / folder, error).string());
  return folders;
}

}  // namespace

TileCompiler tile_compiler_of(const HostCompiler& compiler) {
  TileCompiler found{compiler, {std::begin(kFloor), std::end(kFloor)}, compiler.why_not};
  if (compiler.path.empty()) return found;
  for (const std::string& folder : include_folders()) {
    std::vector<std::string> flags = found.flags;
    if (!folder.empty()) flags.push_back("-I" + folder);
    if (!compiler_finds(compiler, "hwy/detect_targets.h", flags)) continue;
    found.flags = flags;
    return found;
  }
  found.why_not = fmt::format("{} does not find Highway's headers (libhwy-dev)", compiler.path);
  return found;
}

const TileCompiler& tile_compiler() {
  static const TileCompiler compiler = tile_compiler_of(host_compiler());
  return compiler;
}

std::string tile_source(const TileSpec& spec) {
  std::vector<DType> dtypes = spec.dtypes;
  std::sort(dtypes.begin(), dtypes.end());
  dtypes.erase(std::unique(dtypes.begin(), dtypes.end()), dtypes.end());
  std::string cases;
  for (DType dtype : dtypes) cases += case_of(dtype);
  return fmt::format(kUnit, fmt::arg("mr", spec.tile.mr), fmt::arg("nv", spec.tile.nv),
                     fmt::arg("digest", kernel_digest()), fmt::arg("isa", spec.isa),
                     fmt::arg("cases", cases), fmt::arg("entry", kTileEntry));
}

Built build_tile(const TileSpec& spec, const TileCompiler& compiler, const std::string& folder,
                 double limit_seconds, const Stop& stop) {
  const auto refused = [](std::string why) {
    Built built;
    built.verdict = Verdict::compile_failed;
    built.why = std::move(why);
    return built;
  };
  if (!compiler.why_not.empty()) return refused(compiler.why_not);
  const std::vector<std::string> isas = cpu::isa_names();
  if (std::find(isas.begin(), isas.end(), spec.isa) == isas.end())
    return refused(
        fmt::format("no instruction set '{}' here; there is {}", spec.isa, fmt::join(isas, ", ")));
  if (spec.tile.mr < 1 || spec.tile.mr > cpu::kLargestTile.mr || spec.tile.nv < 1 ||
      spec.tile.nv > cpu::kLargestTile.nv)
    return refused("mr is not in 1..16, or nv is not in 1..6");
  return build({tile_source(spec), kernel_files(), compiler.flags, kTileEntry}, compiler.compiler,
               folder, limit_seconds, stop);
}

}  // namespace attune::evolve
