#include "evolve/genome/genome.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "evolve/propose/dice.hpp"
#include "src/cpu/fused.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/select.hpp"
#include "src/select/tuned.hpp"
#include "tests/evolve/spaces.hpp"
#include "tests/rungs/configs.hpp"

namespace attune::evolve {
namespace {

// Any value for each gene, valid or not.
Genome any_genome(const Space& space, Dice* dice) {
  Genome genome{int(dice->below(int64_t(space.families().size()))), {}};
  for (const Gene& gene : space.families()[size_t(genome.family)].genes)
    genome.genes.push_back(dice->pick(gene.values));
  return genome;
}

// ---- families and genes ----

TEST(Genome, GenesAreWrittenDown) {
  for (const NamedSpace& s : all_spaces()) {
    SCOPED_TRACE(s.name);
    ASSERT_FALSE(s.space->families().empty());
    EXPECT_EQ(s.space->families()[0].name, "naive");
    EXPECT_EQ(s.space->axes().size(), size_t{kAxes});
    std::map<std::string, Level> level_of_group;
    for (const Family& family : s.space->families()) {
      EXPECT_FALSE(family.meaning.empty());
      EXPECT_EQ(s.space->family_named(family.name), &family - s.space->families().data());
      std::set<std::string> names;
      for (const Gene& gene : family.genes) {
        EXPECT_TRUE(names.insert(gene.name).second) << gene.name;
        EXPECT_FALSE(gene.meaning.empty()) << gene.name;
        ASSERT_FALSE(gene.values.empty()) << gene.name;
        EXPECT_TRUE(std::is_sorted(gene.values.begin(), gene.values.end())) << gene.name;
        EXPECT_EQ(std::set<int>(gene.values.begin(), gene.values.end()).size(), gene.values.size());
        const auto [at, added] = level_of_group.insert({gene.group, gene.level});
        EXPECT_EQ(at->second, gene.level) << gene.group << " has genes of two levels";
      }
    }
    EXPECT_EQ(s.space->family_named("no such rung"), -1);
  }
}

TEST(Genome, LaddersFollowTheDevice) {
  const auto names = [](const Space& space) {
    std::string all;
    for (const Family& f : space.families()) all += f.name + " ";
    return all;
  };
  const std::vector<Problem> plain = test_problems()[0].problems;
  EXPECT_EQ(names(*cpu_space(plain, fake_cpu(1, true))), "naive fused ");
  EXPECT_EQ(names(*cpu_space(plain, CpuMachine{})), "naive ");
  EXPECT_EQ(names(*cuda_space(plain, arch_of(75))), "naive tiled fused ");
  EXPECT_EQ(names(*cuda_space(plain, arch_of(90))), "naive tiled fused mma wgmma ");
  std::vector<Problem> half = plain;
  half[0].dtype = DType::f16;
  EXPECT_EQ(names(*cuda_space(half, arch_of(80))), "naive tiled fused mma ");
  EXPECT_EQ(names(*cuda_space(half, arch_of(90))), "naive tiled fused mma wgmma ");
  EXPECT_EQ(names(*cuda_space(half, arch_of(100))), "naive tiled fused mma ");
  EXPECT_EQ(names(*cuda_space(half, arch_of(90), {"naive", "mma"})), "naive mma ");
  std::vector<Problem> strict = plain;
  strict[0].strict_fp32 = true;
  EXPECT_EQ(names(*cuda_space(strict, arch_of(90))), "naive tiled fused ");
  EXPECT_NE(cuda_space(plain, arch_of(70))->invalid_reason({}), "");
}

// How Hopper's rung copies tiles follows from how tensors lie; what is possible then, from the
// problem.
TEST(Genome, HopperHasGenesWhereThereIsAChoice) {
  Problem p = test_problems()[0].problems[0];
  p.dtype = DType::f16;
  const auto values = [](const std::vector<Problem>& problems, const std::string& name) {
    const auto space = cuda_space(problems, arch_of(90), {"wgmma"});
    EXPECT_EQ(space->families()[0].name, "wgmma");
    for (const Gene& gene : space->families()[0].genes)
      if (gene.name == name) return gene.values;
    return std::vector<int>{};
  };
  using Values = std::vector<int>;
  p.dim = p.dim_v = 64;
  p.causal = false;
  EXPECT_EQ(values({p}, "maxima"), (Values{0, 1, 2}));
  EXPECT_EQ(values({p}, "sums"), (Values{0, 1, 2}));
  EXPECT_EQ(values({p}, "mask_path"), Values{0});
  EXPECT_EQ(values({p}, "copy"), Values{});
  EXPECT_EQ(values({p}, "group_mb"), Values{16});
  Problem odd = p;
  odd.dim = 100;
  EXPECT_EQ(values({p, odd}, "producer_registers"), Values{kCopyRegisters});
  EXPECT_EQ(values({p, odd}, "maxima"), (Values{0, 1}));
  Problem exact = p;
  exact.lse = true;
  EXPECT_EQ(values({p, exact}, "sums"), Values{0});
  p.mask = MaskKind::f16;
  EXPECT_EQ(values({p}, "mask_path"), (Values{0, 1, 2}));
  EXPECT_EQ(values({p}, "maxima"), (Values{0, 1}));
}

TEST(Genome, StartIsTheBottom) {
  for (const NamedSpace& s : all_spaces()) {
    const Genome start = s.space->start();
    EXPECT_EQ(start.family, 0) << s.name;
    EXPECT_EQ(s.space->invalid_reason(start), "") << s.name;
    EXPECT_TRUE(s.space->print(start).starts_with("naive")) << s.name;
    EXPECT_EQ(s.space->parse(s.space->print(start)), start) << s.name;
  }
}

// ---- printed form ----

TEST(Genome, PrintedFormParsesBack) {
  for (const NamedSpace& s : all_spaces()) {
    Dice dice(1, 1);
    for (int n = 0; n < 300; ++n) {
      const Genome genome = any_genome(*s.space, &dice);
      const std::string text = s.space->print(genome);
      const std::optional<Genome> back = s.space->parse(text);
      ASSERT_TRUE(back.has_value()) << s.name << ": " << text;
      ASSERT_EQ(*back, genome) << s.name << ": " << text;
    }
  }
}

TEST(Genome, OtherTextIsRefused) {
  const auto cpu = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  const std::string good = cpu->print(cpu->library_default());
  EXPECT_EQ(good, "fused.AVX3_DL.mr6.nv4.exp5.bq384.bk256.sp0.dot2.pv0.rs8");
  const std::string bad[] = {
      "",
      "naive.",
      "fused",
      "fused.",
      "fused.AVX3_DL",
      good + ".x1",
      good + ".5",
      " " + good,
      "fused.NEON.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8",    // not this machine's
      "fused.AVX3.mr06.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8",   // two spellings
      "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs2.5",  // no whole threshold
      "fused.AVX3.mr6.nv4.exp5.bq96.bk0.sp0.dot2.pv0.rs8",
      "tiled.bq64.bk64.v0"};
  for (const std::string& text : bad) EXPECT_FALSE(cpu->parse(text).has_value()) << text;
  // Without a name: the best instruction set.
  const auto unnamed = cpu->parse("fused.mr6.nv4.exp5.bq384.bk256.sp0.dot2.pv0.rs8");
  ASSERT_TRUE(unnamed.has_value());
  EXPECT_EQ(*unnamed, cpu->library_default());

  const auto cuda = cuda_space(test_problems()[0].problems, arch_of(75));
  EXPECT_FALSE(cuda->parse("mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv0").has_value());
  EXPECT_FALSE(cuda->parse("naive.bq32.bk64.v0").has_value());
  EXPECT_FALSE(cuda->parse("naive").has_value());
  EXPECT_TRUE(cuda->parse("naive.bq64.bk64.v0").has_value());
}

TEST(Genome, CpuVariantPrintsAndParses) {
  for (const CpuVariant& variant :
       {CpuVariant{}, CpuVariant{true, {}, ""}, CpuVariant{true, {}, "NEON_WITHOUT_AES"},
        CpuVariant{true, {.mr = 10, .rescale_threshold = 2.5f}, "SSE4"}})
    EXPECT_EQ(parse_cpu_variant(to_string(variant)), variant) << to_string(variant);
  EXPECT_EQ(to_string(CpuVariant{}), "naive");
}

// ---- canonical form ----

TEST(Genome, CanonicalIsOneOfAKind) {
  for (const NamedSpace& s : all_spaces()) {
    Dice dice(2, 2);
    std::map<std::string, Genome> seen;
    for (int n = 0; n < 300; ++n) {
      const Genome genome = any_genome(*s.space, &dice);
      const Genome canonical = s.space->canonical(genome);
      ASSERT_EQ(s.space->canonical(canonical), canonical) << s.name << s.space->print(genome);
      ASSERT_EQ(s.space->invalid_reason(canonical), s.space->invalid_reason(genome)) << s.name;
      const Cell cell = s.space->cell(canonical);
      for (size_t a = 0; a < size_t{kAxes}; ++a) {
        ASSERT_GE(cell.at[a], 0) << s.name;
        ASSERT_LT(size_t(cell.at[a]), s.space->axes()[a].steps.size()) << s.name;
      }
      const auto [at, added] = seen.insert({s.space->print(canonical), canonical});
      ASSERT_EQ(at->second, canonical) << s.name;
    }
  }
}

TEST(Genome, ValuesGoToTheNearest) {
  const auto space = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  const auto odd = space->parse("fused.AVX3.mr6.nv4.exp5.bq100.bk250.sp0.dot2.pv0.rs9");
  ASSERT_TRUE(odd.has_value());
  EXPECT_EQ(space->print(space->canonical(*odd)),
            "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8");
}

std::string canonical_of(const Space& space, const std::string& text) {
  const auto genome = space.parse(text);
  return genome ? space.print(space.canonical(*genome)) : "unreadable";
}

TEST(Genome, IdleGenesAreSettled) {
  const Problem p = test_problem(DType::f32, 1, 8, 1024, 1024, 64);
  const auto space = cpu_space({p}, fake_cpu(2, true));
  const std::string same = "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8";
  EXPECT_EQ(canonical_of(*space, same), same);
  // No task has that few rows; there are tasks enough, so that automatic splits are 1.
  EXPECT_EQ(canonical_of(*space, "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp1.dot8.pv0.rs8"), same);
  // What has an effect stays.
  for (const char* other : {"fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv1.rs8",
                            "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs4",
                            "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp2.dot2.pv0.rs8",
                            "fused.AVX3.mr6.nv4.exp5.bq128.bk256.sp0.dot2.pv0.rs8",
                            "fused.AVX2.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8"})
    EXPECT_EQ(canonical_of(*space, other), other);
  // Halves are always packed; a single block is never rescaled, and all larger ones are one. An
  // idle gene has the library's value, which is another one for halves.
  Problem half = test_problem(DType::f16, 1, 8, 1024, 60, 64);
  EXPECT_EQ(canonical_of(*cpu_space({half}, fake_cpu(2, true)),
                         "fused.AVX3.mr6.nv4.exp5.bq96.bk64.sp8.dot0.pv1.rs0"),
            "fused.AVX3.mr6.nv4.exp5.bq96.bk256.sp0.dot4.pv0.rs8");
  // Over two problems a gene is idle only when it is for both.
  EXPECT_EQ(canonical_of(*cpu_space({half, p}, fake_cpu(2, true)),
                         "fused.AVX3.mr6.nv4.exp5.bq96.bk64.sp1.dot0.pv1.rs0"),
            "fused.AVX3.mr6.nv4.exp5.bq96.bk64.sp0.dot4.pv1.rs0");
}

// What changes neither kernels nor launches is settled: no query heads share keys here, and all of
// K and V stay in the L2 whatever their share of it.
TEST(Genome, GenesWithoutEffectOnTheGpuAreSettled) {
  Problem p = test_problem(DType::f16, 1, 8, 2048, 2048, 64);
  p.causal = true;
  const auto space = cuda_space({p}, arch_of(90));
  const auto wgmma = [](int group_mb, int pack) {
    return "wgmma.wg2.bk64.st2.qb1.fl0.tu0.mx1.su0.ee4.sc1.l2" + std::to_string(group_mb) +
           ".pr40" + (pack != 0 ? ".pg1" : "");
  };
  EXPECT_EQ(canonical_of(*space, wgmma(16, 1)), wgmma(16, 0));
  for (int group_mb : {4, 8, 32}) EXPECT_EQ(canonical_of(*space, wgmma(group_mb, 0)), wgmma(16, 0));
  const std::string mma = "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg";
  EXPECT_EQ(canonical_of(*space, mma + "1.kv0"), mma + "0.kv0");
  EXPECT_EQ(space->invalid_reason(*space->parse(mma + "1.kv0")), "");
  // Many heads, and query heads that share keys: both have an effect.
  p.heads_q = 32;
  p.heads_kv = 16;
  p.seq_q = p.seq_k = 8192;
  const auto large = cuda_space({p}, arch_of(90));
  EXPECT_EQ(canonical_of(*large, wgmma(4, 0)), wgmma(4, 0));
  EXPECT_EQ(canonical_of(*large, wgmma(16, 1)), wgmma(16, 1));
  EXPECT_EQ(canonical_of(*large, mma + "1.kv0"), mma + "1.kv0");
}

// Runs one task after another and notes how many there were in each batch.
void counting_for(void* user, int64_t count, attune_task task, void* arg) {
  static_cast<std::vector<int64_t>*>(user)->push_back(count);
  for (int64_t n = 0; n < count; ++n) task(arg, n);
}

struct Trace {
  std::vector<int64_t> tasks;
  std::vector<float> out;
  bool operator==(const Trace&) const = default;
};

Trace trace_of(const Problem& p, const CpuVariant& variant, int threads) {
  const auto fill = [](int64_t count, uint64_t stream) {
    Dice dice(7, stream);
    std::vector<float> data(static_cast<size_t>(count));
    for (float& x : data) x = float(4 * dice.uniform() - 2);
    return data;
  };
  std::vector<float> q = fill(p.batch * p.heads_q * p.seq_q * p.dim, 0);
  std::vector<float> k = fill(p.batch * p.heads_kv * p.seq_k * p.dim, 1);
  std::vector<float> v = fill(p.batch * p.heads_kv * p.seq_k * p.dim_v, 2);
  Trace trace;
  trace.out.resize(size_t(p.batch * p.heads_q * p.seq_q * p.dim_v));
  Params a;
  const auto view = [](std::vector<float>& data, int64_t heads, int64_t rows, int64_t dim) {
    return View{data.data(), heads * rows * dim, rows * dim, dim};
  };
  a.q = view(q, p.heads_q, p.seq_q, p.dim);
  a.k = view(k, p.heads_kv, p.seq_k, p.dim);
  a.v = view(v, p.heads_kv, p.seq_k, p.dim_v);
  a.out = view(trace.out, p.heads_q, p.seq_q, p.dim_v);
  EXPECT_TRUE(cpu::force_isa(variant.isa));
  const Status status =
      cpu::fused_forward(p, a, variant.config, {threads, counting_for, &trace.tasks});
  EXPECT_TRUE(status.ok()) << status.message;
  cpu::force_isa("");
  return trace;
}

// The kernel itself is asked: a genome and its canonical form cut the same tasks and give the same
// bits. It would show when src/cpu/fused.cpp began to cut in another way.
TEST(Genome, CanonicalIsTheSameKernel) {
  Problem gqa = test_problem(DType::f32, 1, 4, 2, 130, 32);  // 4 rows share keys
  gqa.heads_kv = 2;
  Problem causal = test_problem(DType::f32, 1, 1, 100, 120, 32);
  causal.causal = true;
  Problem invariant = test_problem(DType::f32, 1, 1, 10, 1200, 16);
  invariant.batch_invariant = true;
  int merged = 0, cases = 0;
  for (const Problem& p : {gqa, causal, invariant, test_problem(DType::f32, 1, 2, 1, 600, 32),
                           test_problem(DType::f32, 2, 1, 90, 90, 24)}) {
    for (int threads : {1, 4}) {
      CpuMachine machine = this_cpu(threads);
      machine.compiles = false;  // only what can be run here
      const auto space = cpu_space({p}, machine);
      Dice dice(3, uint64_t(cases));
      for (int n = 0; n < 80; ++n, ++cases) {
        Genome genome = any_genome(*space, &dice);
        if (!repair(*space, &genome, dice.bits()) || genome.family == 0) continue;
        const Genome canonical = space->canonical(genome);
        if (canonical == genome) continue;
        ++merged;
        ASSERT_EQ(trace_of(p, cpu_variant(*space, genome), threads),
                  trace_of(p, cpu_variant(*space, canonical), threads))
            << space->print(genome) << " is not " << space->print(canonical);
      }
    }
  }
  EXPECT_GT(merged, 100);
}

// And nothing is left apart that only differs in genes that the kernel never asked for.
TEST(Genome, AutomaticSplitsAreFound) {
  const Problem p = test_problem(DType::f32, 1, 1, 90, 1024, 64);
  const auto space = cpu_space({p}, fake_cpu(4, true));
  EXPECT_EQ(canonical_of(*space, "fused.AVX3.mr6.nv4.exp5.bq96.bk64.sp4.dot2.pv0.rs8"),
            "fused.AVX3.mr6.nv4.exp5.bq96.bk64.sp0.dot2.pv0.rs8");
}

// ---- the library's own choice ----

TEST(Genome, CpuDefaultIsTheLibrarys) {
  for (const NamedProblems& s : test_problems())
    for (bool avx3 : {true, false})
      for (int threads : {1, 2, 16, 64}) {
        const CpuMachine machine = fake_cpu(threads, avx3);
        const auto space = cpu_space(s.problems, machine);
        const Genome genome = space->library_default();
        const CpuVariant variant = cpu_variant(*space, genome);
        EXPECT_EQ(variant.config,
                  default_cpu_config(s.problems[0], machine.archs.at(machine.isas[0]), threads))
            << s.name;
        EXPECT_EQ(variant.isa, machine.isas[0]);
        EXPECT_EQ(space->invalid_reason(genome), "");
        EXPECT_EQ(space->canonical(genome), genome) << s.name;
      }
}

// As a call gets it: from a tuned row where there is one, and with values that no gene lists.
TEST(Genome, ATunedRowIsTheLibrarys) {
  const Problem p = test_problem(DType::bf16, 64, 8, 512, 512, 128);
  const std::vector<std::string> shipped = cuda_library({p}, arch_of(90), "NVIDIA H200");
  bool ships = false;
  for (const TunedRow& row : shipped_tuned().rows) ships |= row.config == shipped[0];
  EXPECT_TRUE(ships) << shipped[0];
  EXPECT_NE(cuda_library({p}, arch_of(90), "Another"), shipped);
  const auto gpu = cuda_space({p}, arch_of(90), {}, shipped);
  EXPECT_EQ(gpu->print(gpu->library_default()), shipped[0]);
  EXPECT_NE(cuda_space({p}, arch_of(90))->library_default(), gpu->library_default());

  const std::string odd = "fused.AVX2.mr4.nv2.exp5.bq100.bk72.sp3.dot3.pv1.rs5";
  const auto cpu = cpu_space({p}, fake_cpu(2, true), {odd});
  EXPECT_EQ(cpu->print(cpu->library_default()), odd);
  EXPECT_EQ(cpu->canonical(cpu->library_default()), cpu->library_default());
  // What only some of the problems can run: the nearest that all can.
  const Problem f32 = test_problem(DType::f32, 1, 8, 512, 512, 64);
  const std::string coarse = "fused.AVX3.mr6.nv4.exp4.bq96.bk64.sp0.dot2.pv0.rs8";
  const auto both = cpu_space({p, f32}, fake_cpu(2, true), {coarse, odd});
  const std::vector<Genome> choices = both->library_choices();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(both->invalid_reason(choices[0]), "");
  EXPECT_NE(both->print(choices[0]), coarse);
  EXPECT_EQ(both->print(choices[1]), odd);
}

// What selection says for this machine is a genome here, whatever the problem.
TEST(Genome, WhatCallsRunNowIsAGenome) {
  for (const NamedProblems& s : test_problems()) {
    if (s.problems.size() > 1) continue;
    const std::vector<std::string> cpu = cpu_library(s.problems, 2);
    const auto here = cpu_space(s.problems, this_cpu(2), cpu);
    EXPECT_EQ(here->print(here->library_default()), cpu[0]) << s.name;
    for (int cc : {75, 80, 90}) {
      const std::vector<std::string> gpu = cuda_library(s.problems, arch_of(cc), "NVIDIA H200");
      const auto there = cuda_space(s.problems, arch_of(cc), {}, gpu);
      EXPECT_EQ(there->print(there->library_default()), gpu[0]) << s.name << cc;
    }
  }
}

TEST(Genome, CudaDefaultIsTheLibrarys) {
  for (const NamedProblems& s : test_problems())
    for (int cc : {75, 80, 86, 90, 120}) {
      const auto space = cuda_space(s.problems, arch_of(cc));
      const Genome genome = space->library_default();
      EXPECT_EQ(space->invalid_reason(genome), "") << s.name << cc;
      EXPECT_EQ(space->canonical(genome), genome) << s.name << cc;
      if (s.problems.size() > 1) continue;  // what one problem gets may not do for another
      CudaRequest r;
      r.problem = s.problems[0];
      r.arch = arch_of(cc);
      r.workspace_bytes = std::numeric_limits<size_t>::max();
      r.layout.rows16 = r.problem.dim * element_bytes(r.problem.dtype) % 16 == 0;
      CudaChoice choice;
      ASSERT_TRUE(select_cuda(r, &choice).ok());
      EXPECT_TRUE(choice.plan.id.ends_with("/" + space->print(genome))) << choice.plan.id;
    }
}

TEST(Genome, ThisMachineIsDescribed) {
  const std::string before = cpu::isa_name();
  const CpuMachine machine = this_cpu(2);
  EXPECT_EQ(cpu::isa_name(), before);
  EXPECT_EQ(machine.isas, cpu::isa_names());
  EXPECT_EQ(machine.archs.size(), machine.isas.size());
  EXPECT_EQ(machine.archs.at(before).lanes, cpu::arch().lanes);
  EXPECT_GE(machine.l1_bytes, 8 << 10);
  EXPECT_GE(machine.l2_bytes, machine.l1_bytes);
}

// ---- validity ----

TEST(Genome, ReasonsAreTheConfigsOwn) {
  Problem half = test_problem(DType::f16, 1, 8, 1024, 1024, 64);
  Problem full = test_problem(DType::f32, 1, 8, 1024, 1024, 64);
  const std::string coarse = "fused.AVX3.mr6.nv4.exp4.bq96.bk256.sp0.dot2.pv0.rs8";
  const auto reason = [&](const std::vector<Problem>& problems, const std::string& text) {
    const auto space = cpu_space(problems, fake_cpu(2, true));
    return space->invalid_reason(space->parse(text).value());
  };
  EXPECT_EQ(reason({half}, coarse), "");
  EXPECT_EQ(reason({half, full}, coarse), "exp_degree 4 is too coarse for fp32");
  EXPECT_EQ(reason({half}, "fused.AVX2.mr6.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8"),
            "the register tile needs more registers than the ISA has");
  EXPECT_NE(reason({half}, "fused.AVX3.mr12.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8"), "");

  const auto cuda = [](const Problem& p, const std::string& text) {
    const auto space = cuda_space({p}, arch_of(90));
    return space->invalid_reason(space->parse(text).value());
  };
  EXPECT_EQ(cuda(half, "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv0"), "");
  EXPECT_EQ(cuda(half, "mma.wq4.wk2.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv0"),
            "only warps of one row of tiles can share the keys");
  EXPECT_EQ(cuda(half, "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv1"), "");
  half.batch = 64;
  EXPECT_NE(cuda(half, "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv1"), "");
  half.batch = 1;
  half.batch_invariant = true;
  EXPECT_EQ(cuda(half, "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm0.pg0.kv1"),
            "the number of parts would depend on the batch");
  Problem masked = test_problem(DType::f16, 1, 8, 1024, 1000, 64);
  masked.mask = MaskKind::boolean;
  EXPECT_EQ(cuda(masked, "mma.wq4.wk1.wr32.bk64.st2.bs1.qr0.v1.sm1.pg0.kv0"),
            "its staged mask needs aligned rows");
}

TEST(Genome, MalformedGenomesAreInvalid) {
  for (const NamedSpace& s : all_spaces()) {
    for (const Genome& bad : {Genome{-1, {}}, Genome{9, {}}, Genome{0, {1}}, Genome{1, {1, 2}}}) {
      EXPECT_NE(s.space->invalid_reason(bad), "") << s.name;
      const Genome canonical = s.space->canonical(bad);
      EXPECT_EQ(canonical.genes.size(), s.space->families()[size_t(canonical.family)].genes.size());
      Genome broken = bad;
      EXPECT_FALSE(repair(*s.space, &broken, 1));
      EXPECT_EQ(broken, bad);
    }
  }
}

// ---- repair ----

TEST(Genome, RepairChangesFewGenes) {
  int invalid = 0, repaired = 0;
  for (const NamedSpace& s : all_spaces()) {
    Dice dice(4, 4);
    for (int n = 0; n < 60; ++n) {
      const Genome genome = any_genome(*s.space, &dice);
      Genome fixed = genome;
      const uint64_t seed = dice.bits();
      const bool ok = repair(*s.space, &fixed, seed);
      Genome again = genome;
      EXPECT_EQ(repair(*s.space, &again, seed), ok);
      EXPECT_EQ(again, fixed) << s.name;
      int changed = 0;
      for (size_t g = 0; g < genome.genes.size(); ++g) changed += fixed.genes[g] != genome.genes[g];
      const bool was_valid = s.space->invalid_reason(genome).empty();
      if (was_valid) {
        EXPECT_EQ(changed, 0);
        continue;
      }
      ++invalid;
      repaired += ok;
      EXPECT_EQ(s.space->invalid_reason(fixed).empty(), ok) << s.name;
      EXPECT_LE(changed, ok ? 2 : 0) << s.name;
    }
  }
  EXPECT_GT(invalid, 900);
  EXPECT_GT(repaired * 10, invalid * 6) << repaired << " of " << invalid;
}

TEST(Genome, RepairKeepsWhatItMust) {
  const auto space = cpu_space(test_problems()[0].problems, fake_cpu(2, true));
  const auto broken = space->parse("fused.AVX3.mr8.nv4.exp5.bq96.bk256.sp0.dot2.pv0.rs8").value();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Genome genome = broken;
    ASSERT_TRUE(repair(*space, &genome, seed, {true}));  // the first gene is mr
    EXPECT_EQ(space->print(genome), "fused.AVX3.mr8.nv3.exp5.bq96.bk256.sp0.dot2.pv0.rs8");
  }
}

}  // namespace
}  // namespace attune::evolve
