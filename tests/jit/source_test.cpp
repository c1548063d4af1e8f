#include "src/jit/source.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/paths.hpp"
#include "tests/rungs/configs.hpp"

namespace attune::jit {
namespace {

namespace fs = std::filesystem;

KernelSpec spec_of(DType dtype, int dim, const Config& config, int cc) {
  KernelSpec spec;
  spec.key.dtype = dtype;
  spec.key.dim = spec.key.dim_v = dim;
  spec.config = config;
  spec.arch = arch_of(cc);
  return spec;
}

// One of every family, with features, and with the caller's code.
std::map<std::string, KernelSpec> golden_specs() {
  std::map<std::string, KernelSpec> specs;
  specs["naive"] = spec_of(DType::f32, 64, config_of(LadderConfig{.vector = false}), 75);
  KernelSpec tiled =
      spec_of(DType::f16, 40, config_of(LadderConfig{.rung = Ladder::tiled, .vector = false}), 86);
  tiled.key.dim_v = 8;
  tiled.key.mask = MaskKind::boolean;
  tiled.key.ragged = true;
  specs["tiled"] = tiled;
  KernelSpec fused =
      spec_of(DType::bf16, 128, config_of(LadderConfig{.rung = Ladder::fused, .block_q = 32}), 120);
  fused.key.causal = true;
  fused.key.window_left = fused.key.window_right = 0;
  fused.key.mask = MaskKind::bf16;
  fused.key.block_mask_q = fused.key.block_mask_k = 1;
  fused.key.softcap = fused.key.alibi = fused.key.sinks = fused.key.dropout = true;
  specs["fused_features"] = fused;
  KernelSpec mma = spec_of(
      DType::bf16, 128, config_of(MmaConfig{.warps_q = 8, .blocks_sm = 2, .pack_gqa = true}), 90);
  mma.key.score_mod = mma.key.mask_mod = true;
  mma.score_mod = "const float* bias = static_cast<const float*>(data);\nreturn score + bias[h];";
  mma.mask_mod = "return i - j < 100;";
  specs["mma_user_code"] = mma;
  specs["mma_f32"] =
      spec_of(DType::f32, 64, config_of(MmaConfig{.q_registers = true, .split_kv = true}), 80);
  KernelSpec wgmma = spec_of(
      DType::bf16, 128,
      config_of(WgmmaConfig{.q_buffers = 2, .sums = RowSums::tensor, .schedule = kDynamic}), 90);
  wgmma.key.causal = true;
  specs["wgmma"] = wgmma;
  KernelSpec wgmma_f32 = spec_of(DType::f32, 64, config_of(WgmmaConfig{.block_k = 64}), 90);
  wgmma_f32.key.dim_v = 32;
  specs["wgmma_f32"] = wgmma_f32;
  KernelSpec backward =
      spec_of(DType::bf16, 128, config_of(BackwardConfig{.block = 32, .vector = false}), 90);
  backward.key.pass = Pass::backward;
  backward.key.causal = backward.key.softcap = backward.key.dropout = backward.key.lse = true;
  specs["fused_backward"] = backward;
  backward.config = config_of(BackwardConfig{.part = BackwardPart::dmask, .block = 32});
  backward.key.mask = MaskKind::f32;
  specs["fused_dmask"] = backward;
  backward.config = config_of(MmaBackwardConfig{.warps = 4, .separate = true, .vector = false});
  specs["mma_backward"] = backward;
  return specs;
}

fs::path golden_path(const std::string& name) {
  return fs::path(source_dir()) / "tests/jit/golden" / (name + ".cu");
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Source, EmittedTextIsTheGoldenOne) {
  for (const auto& [name, spec] : golden_specs())
    EXPECT_EQ(emit(spec), read(golden_path(name)))
        << "if the change is meant, write the files anew: build/attune_tests "
           "--gtest_also_run_disabled_tests --gtest_filter=Source.DISABLED_WriteGoldenFiles";
}

TEST(Source, DISABLED_WriteGoldenFiles) {
  for (const auto& [name, spec] : golden_specs()) std::ofstream(golden_path(name)) << emit(spec);
}

// Kernels are the same whatever number of multiprocessors a card has.
TEST(Source, CardsOfOneKindShareTheirText) {
  KernelSpec spec = golden_specs()["naive"], other = spec;
  other.arch.sms += 1;
  EXPECT_EQ(emit(spec), emit(other));
  other.arch.smem_block += 1024;
  EXPECT_NE(emit(spec), emit(other));
}

TEST(Source, SpecsThatDifferHaveOtherTextsAndHashes) {
  std::set<std::string> texts;
  std::set<size_t> hashes;
  for (const auto& [name, spec] : golden_specs()) {
    texts.insert(emit(spec));
    hashes.insert(hash_of(spec));
    EXPECT_EQ(hash_of(spec), hash_of(KernelSpec(spec)));
  }
  KernelSpec spec = golden_specs()["mma_user_code"];
  spec.mask_mod += " ";
  hashes.insert(hash_of(spec));
  texts.insert(emit(spec));
  EXPECT_EQ(texts.size(), golden_specs().size() + 1);
  EXPECT_EQ(hashes.size(), golden_specs().size() + 1);
}

TEST(Source, EntriesAreInTheText) {
  for (const auto& [name, spec] : golden_specs()) {
    EXPECT_FALSE(entries(spec).empty());
    for (const char* entry : entries(spec))
      EXPECT_NE(emit(spec).find(std::string(entry) + "(const __grid_constant__"),
                std::string::npos);
  }
}

TEST(Source, IncludesAreWrittenFromTheRoot) {
  const std::vector<std::string> known = {"params.h", "tile/number.h", "tile/mask.h"};
  EXPECT_EQ(root_includes("tile/mask.h",
                          "#pragma once\n#include \"../params.h\"\n#include \"number.h\"  // why\n"
                          "#include <stdint.h>\n#include \"unknown.h\"\nlast",
                          known),
            "#pragma once\n#include \"params.h\"\n#include \"tile/number.h\"  // why\n"
            "#include <stdint.h>\n#include \"unknown.h\"\nlast");
}

// The name of a kernel on disk counts these headers and no others.
TEST(Source, IncludedHeadersAreAllThatACompilerReads) {
  const std::vector<std::string>& names = headers().names;
  const auto found_by = [&](const std::string& text) {
    std::set<std::string> found;
    for (const size_t i : included_headers(text)) found.insert(names[i]);
    return found;
  };
  EXPECT_EQ(found_by("#include \"problem.h\"\n"), std::set<std::string>{"problem.h"});
  EXPECT_TRUE(found_by("int x;\n").empty());
  const std::set<std::string> naive = found_by(emit(golden_specs()["naive"]));
  EXPECT_TRUE(naive.contains("ladder/naive.cuh"));
  EXPECT_TRUE(naive.contains("params.h"));
  EXPECT_FALSE(naive.contains("ladder/fused.cuh"));
  const std::set<std::string> wgmma = found_by(emit(golden_specs()["wgmma"]));
  EXPECT_TRUE(wgmma.contains("sm90/wgmma.cuh"));
  EXPECT_TRUE(wgmma.contains("ptx/wgmma.h"));
  EXPECT_FALSE(wgmma.contains("sm80/mma.cuh"));
  // Every include of ours is one that the search knows: written from the root, at the beginning of
  // its line. The host's stdint.h is the only other one.
  for (const std::string& text : headers().texts) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t first = line.find_first_not_of(" \t");
      if (first == std::string::npos || line[first] != '#') continue;
      if (line.find("include") == std::string::npos || line == "#include <stdint.h>") continue;
      EXPECT_EQ(found_by(line).size() > 0, true) << line;
    }
  }
}

TEST(Source, EveryHeaderOfTheTreeIsEmbedded) {
  std::set<std::string> files, embedded;
  const fs::path root = fs::path(source_dir()) / "kernels";
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file()) files.insert(entry.path().lexically_relative(root).string());
  for (size_t i = 0; i < kEmbeddedCount; ++i) {
    embedded.insert(kEmbedded[i].name);
    EXPECT_EQ(kEmbedded[i].text, read(root / kEmbedded[i].name)) << kEmbedded[i].name;
  }
  EXPECT_EQ(files, embedded);
}

}  // namespace
}  // namespace attune::jit
