#include "evolve/compile/tile_compile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "evolve/judge/arena_case.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/worker/worker.hpp"
#include "src/cpu/fused.hpp"
#include "tests/evolve/spaces.hpp"
#include "tests/evolve/worker_skip.hpp"
#include "tests/paths.hpp"

namespace attune::evolve {
namespace {

namespace fs = std::filesystem;

constexpr double kLimit = 120;  // seconds; that only a hang reaches

class TileCompile : public testing::Test {
 protected:
  void SetUp() override {
    if (!tile_compiler().why_not.empty()) GTEST_SKIP() << tile_compiler().why_not;
    ATTUNE_NEEDS_SANDBOX();
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  Built build(const TileSpec& spec) const {
    return build_tile(spec, tile_compiler(), folder, kLimit);
  }

  std::unique_ptr<Worker> start(const Arena& arena) const {
    WorkerOptions o;
    o.tool = tool_path();
    o.threads = 2;
    std::unique_ptr<Worker> worker;
    const Status status = Worker::start(o, arena, &worker);
    EXPECT_TRUE(status.ok()) << status.message;
    return worker;
  }

  // The cases that the evaluator draws, through the worker.
  void expect_right(Worker* worker, Arena* arena, const Problem& base) const {
    Dice dice(11, 0);
    for (const check::Case& c : small_cases(base, Contract::none, &dice)) {
      const Arena::Mark mark = arena->mark();
      ArenaCase in_arena(c, arena);
      ASSERT_TRUE(in_arena.fits());
      const int64_t call = in_arena.call();
      const Reply reply = worker->run({&call, 1}, kLimit);
      ASSERT_TRUE(reply.ok()) << c.name() << ": " << reply.text;
      const ArenaCase::Judgement judged = in_arena.judge(cpu::Executor{});
      EXPECT_FALSE(judged.damaged) << c.name() << ": " << judged.verdict.why;
      EXPECT_TRUE(judged.verdict.ok) << c.name() << ": " << judged.verdict.why;
      EXPECT_LE(judged.verdict.error, judged.verdict.limit) << c.name();
      arena->release(mark);
    }
  }

  fs::path folder = fs::temp_directory_path() / fmt::format("attune_tile_test.{}", getpid());
};

Problem problem_of(DType dtype, int dim = 40) { return test_problem(dtype, 1, 1, 1, 1, dim); }

std::string config_text(const TileSpec& spec, int block_k = 64) {
  CpuVariant variant{.fused = true, .config = {}, .isa = spec.isa};
  variant.config.mr = spec.tile.mr;
  variant.config.nv = spec.tile.nv;
  variant.config.block_q = 64;
  variant.config.block_k = block_k;
  return to_string(variant);
}

// On 16 registers where the processor has such an instruction set.
TEST_F(TileCompile, ComputesInTheWorker) {
  const std::vector<std::string> isas = cpu::isa_names();
  const bool avx2 = std::count(isas.begin(), isas.end(), "AVX2") > 0;
  const TileSpec spec{{3, 3}, avx2 ? "AVX2" : isas[0], {DType::f32}};
  const Built built = build(spec);
  ASSERT_EQ(built.verdict, Verdict::ok) << built.why;
  EXPECT_GT(built.seconds, 0);

  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(64 << 20, 64 << 20, &arena).ok());
  const auto worker = start(*arena);
  const Reply loaded = worker->load_tile(config_text(spec), built.library, kLimit);
  ASSERT_TRUE(loaded.ok()) << loaded.text;
  expect_right(worker.get(), arena.get(), problem_of(DType::f32));

  // What was not asked for is not there.
  Dice dice(1, 0);
  const std::vector<check::Case> halves =
      small_cases(problem_of(DType::f16), Contract::candidate, &dice);
  ArenaCase half(halves[0], arena.get());
  const int64_t call = half.call();
  const Reply refused = worker->run({&call, 1}, kLimit);
  EXPECT_EQ(refused.kind, Reply::Kind::refused);
  EXPECT_NE(refused.text.find("element type"), std::string::npos) << refused.text;

  // Without its library the config has no tile.
  const auto other = start(*arena);
  ASSERT_TRUE(other->load_config(config_text(spec), kLimit).ok());
  EXPECT_EQ(other->run({&call, 1}, kLimit).kind, Reply::Kind::refused);
}

TEST_F(TileCompile, IsAStageOfTheCascade) {
  EvaluatorOptions o;
  o.shapes = {{"small", test_problem(DType::f32, 1, 2, 96, 96, 32)}};
  o.tool = tool_path();
  o.scratch = folder;
  o.race_pairs = 2;
  o.full_pairs = 3;
  o.check_seconds = kLimit;
  const auto evaluator = cpu_evaluator(o);
  const auto evaluate = [&](const std::string& text) {
    const Candidate candidate{text, text, ""};
    return evaluator->evaluate(candidate, candidate);
  };
  const int registers = cpu::arch().registers;
  const TileSpec spec{{5, registers == 32 ? 4 : 2}, cpu::isa_name(), {}};
  const Evaluation first = evaluate(config_text(spec));
  ASSERT_EQ(first.verdict, Verdict::ok) << first.why;
  EXPECT_EQ(first.stage, Stage::check);
  EXPECT_GT(first.compile_seconds, 0);
  EXPECT_LE(first.error, first.limit);

  // Another config of the tile: the same library, and yet not the same candidate.
  const Evaluation second = evaluate(config_text(spec, 96));
  EXPECT_EQ(second.verdict, Verdict::ok) << second.why;
  EXPECT_EQ(second.compile_seconds, 0);
  EXPECT_EQ(second.source_hash, first.source_hash);
  EXPECT_NE(second.binary_hash, first.binary_hash);
  EXPECT_EQ(second.same_as, "");

  const Evaluation unknown = evaluate(config_text({spec.tile, "NOSUCH", {}}));
  EXPECT_EQ(unknown.verdict, Verdict::compile_failed);
  EXPECT_EQ(unknown.stage, Stage::compile);
  EXPECT_NE(unknown.why.find("NOSUCH"), std::string::npos) << unknown.why;
}

TEST_F(TileCompile, FailuresAreValues) {
  const TileSpec spec{{5, 2}, cpu::isa_name(), {DType::f32}};
  TileCompiler broken = tile_compiler();
  broken.compiler.path = "/bin/false";
  const Built failed = build_tile(spec, broken, folder, kLimit);
  EXPECT_EQ(failed.verdict, Verdict::compile_failed);
  EXPECT_NE(failed.why, "");
  EXPECT_NE(tile_compiler_of(broken.compiler).why_not.find("Highway"), std::string::npos);

  const TileCompiler none = tile_compiler_of({"", "", "there is no compiler"});
  EXPECT_EQ(none.why_not, "there is no compiler");
  const Built impossible = build_tile(spec, none, folder, kLimit);
  EXPECT_EQ(impossible.verdict, Verdict::compile_failed);
  EXPECT_EQ(impossible.why, "there is no compiler");

  EXPECT_EQ(build_tile(spec, tile_compiler(), folder, 0.05).verdict, Verdict::compile_timeout);
  EXPECT_EQ(build({{17, 1}, spec.isa, spec.dtypes}).verdict, Verdict::compile_failed);
  EXPECT_EQ(build({{5, 2}, "AVX2\n#error", spec.dtypes}).verdict, Verdict::compile_failed);
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(TileSource, OneTileAndTheTypesAskedFor) {
  const std::string source = tile_source({{5, 4}, "AVX3", {DType::bf16, DType::f32, DType::bf16}});
  EXPECT_NE(source.find("TaskRunner<T, 5, 4>"), std::string::npos);
  EXPECT_NE(source.find("HWY_TARGET HWY_AVX3"), std::string::npos);
  EXPECT_NE(source.find("TileTable<float>"), std::string::npos);
  EXPECT_EQ(source.find("TileTable<F16>"), std::string::npos);
  EXPECT_EQ(source, tile_source({{5, 4}, "AVX3", {DType::f32, DType::bf16}}));
}

// ---- the space ----

const Gene& gene_named(const Space& space, const std::string& name) {
  for (const Gene& gene : space.families()[1].genes)
    if (gene.name == name) return gene;
  ADD_FAILURE() << "no gene " << name;
  return space.families()[1].genes[0];
}

TEST(TileSpace, HasOtherTilesWithACompilerOnly) {
  const std::vector<Problem> problems = {test_problem(DType::f32, 1, 8, 1024, 1024, 64)};
  const std::string off_grid = "fused.AVX3.mr5.nv4.exp5.bq96.bk128.sp0.dot2.pv0.rs8";
  CpuMachine machine = fake_cpu(2, true);
  machine.why_not = "the reason";
  const auto without = cpu_space(problems, machine);
  EXPECT_EQ(without->invalid_reason(without->parse(off_grid).value()),
            "no prebuilt register tile mr x nv");
  EXPECT_EQ(gene_named(*without, "mr").values, (std::vector<int>{4, 6, 8, 12}));
  EXPECT_NE(gene_named(*without, "nv").meaning.find("the reason"), std::string::npos);

  machine.compiles = true;
  machine.why_not = "";
  const auto with = cpu_space(problems, machine);
  EXPECT_EQ(gene_named(*with, "mr").values.size(), 16u);
  EXPECT_EQ(gene_named(*with, "nv").values, (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_NE(gene_named(*with, "nv").meaning.find("6x4"), std::string::npos);  // built in
  EXPECT_EQ(with->library_default(), without->library_default());
  const Genome genome = with->parse(off_grid).value();
  EXPECT_EQ(with->invalid_reason(genome), "");
  EXPECT_EQ(with->canonical(genome).genes[0], 5);
  EXPECT_EQ(with->print(genome), off_grid);

  int tiles = 0;
  for (int mr = 1; mr <= 16; ++mr)
    for (int nv = 1; nv <= 6; ++nv)
      for (const char* isa : {"AVX3", "AVX2"}) {
        const Genome g =
            with->parse(
                    fmt::format("fused.{}.mr{}.nv{}.exp5.bq96.bk128.sp0.dot2.pv0.rs8", isa, mr, nv))
                .value();
        const bool fits = mr * nv + nv + 1 <= machine.archs.at(isa).registers;
        EXPECT_EQ(with->invalid_reason(g).empty(), fits) << with->print(g);
        tiles += fits;
      }
  EXPECT_GT(tiles, 60);

  // Panels of 80 keys: the fourth of 256 keys would end beyond the row of scores.
  const std::string wide = "fused.AVX3.mr5.nv5.exp5.bq96.bk{}.sp0.dot2.pv0.rs8";
  EXPECT_EQ(with->invalid_reason(with->parse(fmt::format(fmt::runtime(wide), 224)).value()), "");
  EXPECT_NE(with->invalid_reason(with->parse(fmt::format(fmt::runtime(wide), 256)).value()), "");
}

TEST(TileSpace, ANarrowMachineHasNarrowTiles) {
  CpuMachine machine = fake_cpu(2, false);
  machine.compiles = true;
  const auto space = cpu_space({test_problem(DType::f32, 1, 8, 1024, 1024, 64)}, machine);
  EXPECT_EQ(gene_named(*space, "mr").values.back(), 14);  // 14 x 1 and two more
}

// ---- full tier: the corners of the grid, every element type ----

class FullTiles : public TileCompile {};

TEST_F(FullTiles, CornersAreRight) {
  std::unique_ptr<Arena> arena;
  ASSERT_TRUE(Arena::create(64 << 20, 64 << 20, &arena).ok());
  for (const std::string& isa : cpu::isa_names()) {
    cpu::force_isa(isa);
    const int registers = cpu::arch().registers;
    cpu::force_isa("");
    for (const cpu::Tile tile :
         {cpu::Tile{1, 1}, {1, 6}, {16, 1}, {14, 1}, {14, 2}, {5, 5}, {9, 3}, {7, 1}, {2, 4}}) {
      if (cpu::registers_of(tile) > registers) continue;
      const TileSpec spec{tile, isa, {DType::f32, DType::f16, DType::bf16}};
      const Built built = build(spec);
      ASSERT_EQ(built.verdict, Verdict::ok) << built.why;
      const auto worker = start(*arena);
      const Reply loaded = worker->load_tile(config_text(spec, 224), built.library, kLimit);
      ASSERT_TRUE(loaded.ok()) << loaded.text;
      for (DType dtype : spec.dtypes) {
        SCOPED_TRACE(fmt::format("{}x{} {} {}", tile.mr, tile.nv, isa, int(dtype)));
        for (int dim : {33, 64}) expect_right(worker.get(), arena.get(), problem_of(dtype, dim));
      }
    }
  }
}

}  // namespace
}  // namespace attune::evolve
