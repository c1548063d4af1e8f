// Hopper's rung: when it is chosen, with which config, and how it is launched.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "src/jit/source.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

Problem problem(int64_t batch, int64_t heads, int64_t seq, int dim, bool causal = false) {
  Problem p;
  p.dtype = DType::bf16;
  p.batch = batch;
  p.heads_q = p.heads_kv = heads;
  p.seq_q = p.seq_k = seq;
  p.dim = p.dim_v = dim;
  p.causal = causal;
  return p;
}

CudaRequest request(const Problem& p, attune_mode mode = ATTUNE_AUTO, int cc = 90) {
  return {{p, arch_of(cc), {}, SIZE_MAX, "", ""}, mode};
}

CudaChoice choose(const CudaRequest& r) {
  CudaChoice choice;
  const Status status = select_cuda(r, &choice);
  EXPECT_TRUE(status.ok()) << status.message;
  return choice;
}

WgmmaConfig chosen_config(const CudaChoice& choice) {
  return typed<WgmmaChoice>(choice.plan.config());
}
WgmmaConfig standard_config(const Request& r) { return standard<WgmmaChoice>("wgmma", r); }
Plan plan_with(const Request& r, const WgmmaConfig& c) {
  return rung_named("wgmma")->plan(r, config_of(c));
}

// ---- when ----

TEST(WgmmaChoice, RefusalsNameTheReason) {
  const auto why = [](const CudaRequest& r) {
    CudaChoice choice;
    const Status status = select_cuda(r, &choice);
    EXPECT_EQ(status.code, ATTUNE_UNSUPPORTED);
    return status.message;
  };
  const auto says = [&](CudaRequest r, const char* part) {
    const std::string message = why(r);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    r.mode = ATTUNE_AUTO;
    EXPECT_NE(choose(r).mode, ATTUNE_WGMMA) << part;
  };
  const Problem plain = problem(2, 8, 1024, 64);
  says(request(plain, ATTUNE_WGMMA, 80), "needs compute capability 9.0");
  says(request(plain, ATTUNE_WGMMA, 100), "needs compute capability 9.0");
  Problem p = plain;
  p.dtype = DType::f32;
  p.strict_fp32 = true;
  says(request(p, ATTUNE_WGMMA), "strict_fp32 keeps fp32 on CUDA cores");
  p.strict_fp32 = false;
  p.dim = p.dim_v = 192;
  says(request(p, ATTUNE_WGMMA), "fp32 holds O twice: Dv is above 128");
  p.dim = p.dim_v = 66;
  says(request(p, ATTUNE_WGMMA), "multiples of 16 bytes");
  p = plain;
  p.batch_invariant = true;
  says(request(p, ATTUNE_WGMMA), "not batch-invariant");
  p = plain;
  p.seq_k = 0;
  says(request(p, ATTUNE_WGMMA), "there are no keys");
}

// Where TMA cannot reach, the producer copies: as much at once as the rows allow.
TEST(WgmmaChoice, CopiesWhatTmaCannotReach) {
  for (int dim : {1, 20, 33, 64, 100, 128, 255, 256}) {
    CudaRequest r = request(problem(2, 8, 1024, dim), ATTUNE_WGMMA);
    r.layout = layout_of(r.problem, {});
    const int step = dim % 8 == 0 ? 16 : dim % 4 == 0 ? 8 : dim % 2 == 0 ? 4 : 2;
    EXPECT_EQ(r.layout.step, step);
    const CudaChoice choice = choose(r);
    EXPECT_EQ(chosen_config(choice).copy, step == 16 ? 0 : step) << dim;
    EXPECT_EQ(!choice.plan.maps.empty(), step == 16) << dim;
  }
  CudaRequest r = request(problem(2, 8, 1024, 64), ATTUNE_WGMMA);
  EXPECT_EQ(chosen_config(choose(r)).copy, 0);
  r.layout = {.forward = false};
  EXPECT_EQ(chosen_config(choose(r)).copy, 16);
  r.layout = {.rows16 = false, .step = 4};
  EXPECT_EQ(chosen_config(choose(r)).copy, 4);
  r.mode = ATTUNE_AUTO;
  EXPECT_EQ(choose(r).mode, ATTUNE_WGMMA);
  r.layout.step = 2;  // element by element
  EXPECT_EQ(choose(r).mode, ATTUNE_MMA);
}

TEST(WgmmaChoice, LeavesFewRowsAndScatteredMasksToMma) {
  EXPECT_EQ(choose(request(problem(2, 8, 1024, 64))).mode, ATTUNE_WGMMA);
  Problem p = problem(2, 8, 1024, 64);
  p.seq_q = 1;
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA);
  p = problem(2, 8, 1024, 64);
  p.block_mask_q = p.block_mask_k = 64;
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_WGMMA);
  p.block_mask_k = 8;  // cells so small that hardly a tile is all one or the other
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA);
  p = problem(2, 8, 1024, 64);
  p.mask = MaskKind::f16;
  CudaRequest r = request(p);
  EXPECT_EQ(choose(r).mode, ATTUNE_WGMMA);
  EXPECT_TRUE(chosen_config(choose(r)).stages_mask());
  r.layout.mask16 = false;
  EXPECT_EQ(choose(r).mode, ATTUNE_MMA);
  r.mode = ATTUNE_WGMMA;  // but it can
  EXPECT_FALSE(chosen_config(choose(r)).stages_mask());
}

// A few queries of heads that share keys fill tiles together, where there are tiles enough.
TEST(WgmmaChoice, PacksHeadsThatShareKeys) {
  Problem p = problem(16, 32, 4096, 128);
  p.heads_kv = 8;
  p.seq_q = 16;
  const CudaChoice choice = choose(request(p));
  EXPECT_EQ(choice.mode, ATTUNE_WGMMA);
  EXPECT_TRUE(chosen_config(choice).pack_gqa);
  EXPECT_EQ(choice.plan.maps.at(0).order, cuda::Map::Order::packed);
  EXPECT_EQ(choice.plan.blocks.tiles, 16u * 8u);
  CudaRequest r = request(p, ATTUNE_WGMMA);
  r.layout = {.forward = false};  // a box of TMA packs them
  EXPECT_FALSE(chosen_config(choose(r)).pack_gqa);
  p.batch = 1;  // few tiles: mma cuts the keys among blocks
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA);
  p.batch = 64;
  p.seq_q = 1;  // nearly empty tiles
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA);
  p.seq_q = 16;
  p.heads_q = 24;  // three a key head do not divide a tile
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA);
}

// ---- fp32 ----

Problem fp32(int64_t batch, int64_t heads, int64_t seq, int dim, bool causal = false) {
  Problem p = problem(batch, heads, seq, dim, causal);
  p.dtype = DType::f32;
  return p;
}

TEST(WgmmaFp32, AutoTakesItWhereItPays) {
  EXPECT_EQ(choose(request(fp32(4, 8, 1024, 64))).mode, ATTUNE_WGMMA);
  EXPECT_EQ(choose(request(fp32(1, 1, 131072, 128, true))).mode, ATTUNE_WGMMA);
  EXPECT_EQ(choose(request(fp32(4, 8, 1024, 64), ATTUNE_AUTO, 80)).mode, ATTUNE_MMA);
  Problem p = fp32(4, 8, 1024, 64);
  p.seq_q = 63;
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA) << "few rows";
  EXPECT_EQ(choose(request(fp32(1, 2, 1024, 64))).mode, ATTUNE_MMA) << "few tiles";
  p = fp32(4, 8, 1024, 64);
  p.mask = MaskKind::f32;
  EXPECT_EQ(choose(request(p)).mode, ATTUNE_MMA) << "masks are not staged";
  EXPECT_EQ(choose(request(p, ATTUNE_WGMMA)).mode, ATTUNE_WGMMA) << "but it can";
  // Without room for the split operands it is as it was; mma needs some too.
  CudaRequest r = request(fp32(4, 8, 1024, 64));
  r.workspace_bytes = 0;
  EXPECT_EQ(choose(r).mode, ATTUNE_FUSED);
}

TEST(WgmmaFp32, ASecondLaunchSplitsKeysAndValues) {
  Problem p = fp32(2, 8, 1000, 64, true);
  p.heads_kv = 2;
  const Plan plan = choose(request(p)).plan;
  ASSERT_EQ(plan.launches.size(), 2u);
  EXPECT_STREQ(plan.launches[0].entry, "attune_split");
  EXPECT_EQ(plan.launches[0].grid, 2 * 2 * 2 * 8u) << "K and V, 4 heads, tiles of 128";
  EXPECT_FALSE(plan.launches[0].maps);
  EXPECT_STREQ(plan.launches[1].entry, "attune_wgmma");
  EXPECT_TRUE(plan.launches[1].early);
  EXPECT_TRUE(plan.launches[1].maps);
  EXPECT_TRUE(plan.clears.empty()) << "the pre-pass sets it";
  // As many bytes as K and V in whole tiles, their notes, and the counter.
  EXPECT_EQ(plan.workspace_bytes, 256u + 4 * 8 * (128 * 64 * 4 * 2 + 32));
}

TEST(WgmmaFp32, EveryProblemHasOneThatCanRun) {
  void (*const features[])(Problem*) = {
      [](Problem*) {},
      [](Problem* p) { p->causal = p->lse = true; },
      [](Problem* p) { p->window_left = 100; },
      [](Problem* p) { p->causal = p->ragged = true; },
      [](Problem* p) { p->causal = p->key_lengths = true; },
      [](Problem* p) { p->mask = MaskKind::f32, p->causal = true; },
      [](Problem* p) { p->alibi = p->sinks = p->dropout = true; },
      [](Problem* p) { p->block_mask_q = p->block_mask_k = 64; },
  };
  for (int dim = 4; dim <= kMaxHeadDim; dim += 4)
    for (int dim_v : {4, 64, 128})
      for (int64_t seq : {1, 64, 1000, 4096})
        for (const auto& feature : features) {
          Problem p = fp32(2, 16, seq, dim);
          p.dim_v = dim_v;
          feature(&p);
          const CudaRequest r = request(p, ATTUNE_WGMMA);
          const WgmmaConfig c = standard_config(r);
          ASSERT_STREQ(invalid_reason(c, p, r.arch), "")
              << dim << " " << dim_v << " " << seq << " " << to_string(config_of(c));
        }
}

TEST(WgmmaFp32, InvalidReasonsAreGiven) {
  const Problem p = fp32(2, 8, 1024, 64);
  const auto reason = [&](const WgmmaConfig& c) {
    return std::string(invalid_reason(c, p, arch_of(90)));
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_NE(reason({.sums = RowSums::tensor}).find("not exact enough"), std::string::npos);
  EXPECT_NE(reason({.maxima = RowMaxima::lazy}), "");
  EXPECT_EQ(reason({.block_k = 144}), "the accumulators need more registers than a consumer has");
  EXPECT_EQ(reason({.stages = 4}), "the tiles need more shared memory than a block has");
}

// ---- what TMA can walk over ----

TEST(WgmmaLayout, TensorsThatRepeatOrRunBackwardsAreTold) {
  const Problem p = problem(2, 4, 128, 64);
  Params a;
  alignas(16) static char data[16];
  a.rows_q = a.rows_k = p.seq_q;
  for (View* v : {&a.q, &a.k, &a.v, &a.out}) *v = {data, 4 * 128 * 64, 128 * 64, 64};
  EXPECT_TRUE(layout_of(p, a).forward);
  for (View Params::*tensor : {&Params::q, &Params::k, &Params::v, &Params::out})
    for (int64_t View::*stride : {&View::stride_b, &View::stride_h, &View::stride_s})
      for (int64_t bad : {int64_t{0}, int64_t{-64}}) {
        Params b = a;
        (b.*tensor).*stride = bad;
        EXPECT_FALSE(layout_of(p, b).forward);
      }
  // How much of a row can be copied at once is what its start and its strides are multiples of.
  EXPECT_EQ(layout_of(p, a).step, 16);
  for (int64_t View::*stride : {&View::stride_b, &View::stride_h, &View::stride_s})
    for (int bytes : {2, 4, 8, 16}) {
      Params b = a;
      b.v.*stride = -(1024 + bytes) / 2;
      EXPECT_EQ(layout_of(p, b).step, bytes);
      EXPECT_EQ(layout_of(p, b).rows16, bytes == 16);
      b = a;
      b.q.data = data + bytes % 16;
      EXPECT_EQ(layout_of(p, b).step, bytes);
    }
  // One of a kind has no stride to speak of.
  Problem one = problem(1, 1, 128, 64);
  Params b = a;
  b.k.stride_b = 0;
  b.k.stride_h = -64;
  EXPECT_TRUE(layout_of(one, b).forward);
  b.k.stride_b = 3;
  EXPECT_EQ(layout_of(one, b).step, 16);
  // A mask may repeat.
  Problem masked = p;
  masked.mask = MaskKind::f16;
  a.mask.data = data;
  a.mask.stride[2] = 128;
  a.mask.stride[3] = 1;
  EXPECT_TRUE(layout_of(masked, a).forward);
  a.mask.stride[2] = -128;
  EXPECT_FALSE(layout_of(masked, a).forward);
}

// ---- defaults ----

TEST(WgmmaDefaults, EveryProblemHasOneThatCanRun) {
  void (*const features[])(Problem*) = {
      [](Problem*) {},
      [](Problem* p) { p->causal = true; },
      [](Problem* p) { p->causal = p->lse = true; },
      [](Problem* p) { p->window_left = 100; },
      [](Problem* p) { p->causal = p->ragged = true; },
      [](Problem* p) { p->causal = p->key_lengths = true; },
      [](Problem* p) { p->mask = MaskKind::boolean; },
      [](Problem* p) { p->mask = MaskKind::f16; },
      [](Problem* p) { p->mask = MaskKind::f32, p->causal = true; },
      [](Problem* p) { p->mask = MaskKind::bf16, p->softcap = true; },
      [](Problem* p) { p->alibi = p->sinks = true; },
      [](Problem* p) { p->dropout = p->causal = true; },
      [](Problem* p) { p->block_mask_q = p->block_mask_k = 64; },
      [](Problem* p) { p->block_mask_q = p->block_mask_k = 64, p->mask = MaskKind::f16; },
      [](Problem* p) { p->heads_kv = 1; },
      [](Problem* p) { p->heads_kv = 4, p->seq_q = 16; },
  };
  for (int dim : {1,   7,   8,   16,  20,  24,  33,  40,  48,  64,  72,  80,  96, 100,
                  112, 128, 129, 136, 160, 176, 192, 200, 224, 240, 250, 255, 256})
    for (int dim_v : {8, 64, dim, 256})
      for (int64_t seq : {1, 64, 512, 1000, 4096})
        for (const auto& feature : features)
          for (size_t workspace : {size_t{0}, size_t{1}, SIZE_MAX}) {
            Problem p = problem(2, 16, seq, dim);
            p.dim_v = dim_v;
            feature(&p);
            CudaRequest r = request(p, ATTUNE_WGMMA);
            r.layout = layout_of(p, {});
            r.layout.mask16 = true;
            r.layout.forward = workspace != 1;
            r.workspace_bytes = workspace;
            const WgmmaConfig c = standard_config(r);
            ASSERT_STREQ(invalid_reason(c, p, r.arch), "")
                << dim << " " << dim_v << " " << seq << " " << to_string(config_of(c));
            const Plan plan = plan_with(r, c);
            ASSERT_LE(plan.workspace_bytes, workspace);
            ASSERT_EQ(plan.launches.size(), 1u);
            ASSERT_GT(plan.launches[0].grid, 0u);
            ASSERT_TRUE(plan.launches[0].maps);
            ASSERT_EQ(plan.maps.size() == 5, c.stages_mask());
            ASSERT_EQ(c.tma(), r.layout.tma());
          }
}

TEST(WgmmaDefaults, FewTilesGetABlockEach) {
  for (bool causal : {false, true}) {
    const CudaChoice choice = choose(request(problem(1, 8, 512, 64, causal)));
    EXPECT_EQ(chosen_config(choice).warpgroups, 1);
    EXPECT_EQ(chosen_config(choice).schedule, kGrid);
    EXPECT_EQ(choice.plan.launches[0].grid, 64u);
  }
  // More than the multiprocessors: larger tiles.
  const CudaChoice larger = choose(request(problem(1, 16, 1024, 128)));
  EXPECT_EQ(chosen_config(larger).warpgroups, 2);
  EXPECT_EQ(larger.plan.launches[0].grid, 128u);
  const CudaChoice many = choose(request(problem(8, 32, 2048, 128)));
  EXPECT_NE(chosen_config(many).schedule, kGrid);
  EXPECT_EQ(many.plan.launches[0].grid, 132u);
}

TEST(WgmmaDefaults, SumsAreExactWhereTheyAreReturned) {
  Problem p = problem(8, 32, 2048, 128);
  EXPECT_TRUE(chosen_config(choose(request(p))).sums == RowSums::tensor);
  p.lse = true;
  EXPECT_FALSE(chosen_config(choose(request(p))).sums == RowSums::tensor);
  p = problem(8, 8, 2048, 256);
  EXPECT_TRUE(chosen_config(choose(request(p))).sums == RowSums::rounded);
  p.lse = true;
  EXPECT_FALSE(chosen_config(choose(request(p))).sums == RowSums::rounded);
}

// Where sums are by tensor cores, whatever the limit; fp16 of other dimensions up to 96 alone.
TEST(WgmmaDefaults, OneMaximumServesARow) {
  const auto first_max = [](int dim, DType dtype, bool causal, int64_t window, bool lse) {
    Problem p = problem(8, 32, 2048, dim, causal);
    p.dtype = dtype;
    p.window_left = window;
    p.lse = lse;
    return chosen_config(choose(request(p))).maxima == RowMaxima::first;
  };
  for (DType dtype : {DType::f16, DType::bf16})
    for (bool causal : {false, true})
      for (int64_t window : {kNoLimit, int64_t{300}})
        for (int dim : {64, 128}) {
          EXPECT_TRUE(first_max(dim, dtype, causal, window, false)) << dim;
          EXPECT_FALSE(first_max(dim, dtype, causal, window, true)) << dim;
        }
  EXPECT_TRUE(first_max(96, DType::f16, true, kNoLimit, false));
  EXPECT_FALSE(first_max(96, DType::f16, true, 300, false));
  EXPECT_TRUE(first_max(256, DType::bf16, false, kNoLimit, false));
  EXPECT_FALSE(first_max(256, DType::f16, false, kNoLimit, false));
}

// At D=64 the walk that goes on to other rows early pays where docs/notes says so.
TEST(WgmmaDefaults, FlatWhereItPays) {
  const auto flat = [](int64_t seq, bool causal, DType dtype, bool lse) {
    Problem p = problem(4, 32, seq, 64, causal);
    p.dtype = dtype;
    p.lse = lse;
    return chosen_config(choose(request(p))).flat;
  };
  for (DType dtype : {DType::f16, DType::bf16}) {
    EXPECT_FALSE(flat(512, false, dtype, false));
    EXPECT_FALSE(flat(4096, false, dtype, false));
    EXPECT_TRUE(flat(8192, false, dtype, false));
    EXPECT_FALSE(flat(512, true, dtype, false));
    EXPECT_EQ(flat(4096, true, dtype, false), dtype == DType::bf16);
    EXPECT_TRUE(flat(8192, true, dtype, false));
    EXPECT_TRUE(flat(4096, false, dtype, true));
    EXPECT_TRUE(flat(16384, false, dtype, true));
    EXPECT_TRUE(flat(8192, true, dtype, true));
    EXPECT_TRUE(flat(16384, true, dtype, true));
  }
}

// Rows that meet few keys end often: then flat, which waits for the next rows' keys, is slower.
TEST(WgmmaDefaults, RowsWithFewKeysAreNotFlat) {
  Problem p = problem(8, 32, 2048, 64, true);
  EXPECT_TRUE(chosen_config(choose(request(p))).flat);
  EXPECT_EQ(chosen_config(choose(request(p))).stages, 4);
  p.window_left = 300;
  EXPECT_FALSE(chosen_config(choose(request(p))).flat);
  EXPECT_EQ(chosen_config(choose(request(p))).stages, 6);
  p = problem(8, 32, 512, 64, true);
  EXPECT_FALSE(chosen_config(choose(request(p))).flat);
  EXPECT_EQ(chosen_config(choose(request(p))).schedule, kDynamic);
}

TEST(WgmmaDefaults, ADynamicScheduleNeedsACounter) {
  CudaRequest r = request(problem(2, 32, 4096, 128, true));
  CudaChoice choice = choose(r);
  EXPECT_EQ(chosen_config(choice).schedule, kDynamic);
  EXPECT_EQ(choice.plan.clears, (std::vector<cuda::Clear>{{0, 4}}));
  EXPECT_GE(choice.plan.workspace_bytes, 4u);
  r.workspace_bytes = 0;
  choice = choose(r);
  EXPECT_EQ(chosen_config(choice).schedule, kPersistent);
  EXPECT_TRUE(choice.plan.clears.empty());
}

// Every block has room to note what it has to do again.
TEST(WgmmaPlan, ABlockTakesNoMoreTilesThanItHasNotes) {
  for (bool causal : {false, true})
    for (int64_t seq : {1, 100, 300, 65536})
      for (int schedule : {kPersistent, kDynamic}) {
        const Problem p = problem(64, 64, seq, 64, causal);
        const WgmmaConfig c{.schedule = schedule};
        const Plan plan = plan_with(request(p), c);
        EXPECT_EQ(plan.blocks.tiles, p.batch * p.heads_q * ((seq + 127) / 128));
        const uint64_t room = uint64_t{plan.launches[0].grid} * kMostTiles;
        EXPECT_GE(room, causal && schedule == kPersistent ? 2 * uint64_t{plan.blocks.tiles}
                                                          : plan.blocks.tiles);
      }
}

// ---- configs ----

TEST(WgmmaConfig, InvalidReasonsAreGiven) {
  const Problem p = problem(2, 8, 1024, 128);
  const Arch h200 = arch_of(90);
  const auto reason = [&](const WgmmaConfig& c) { return std::string(invalid_reason(c, p, h200)); };
  EXPECT_EQ(reason({}), "");
  EXPECT_NE(std::string(invalid_reason(WgmmaConfig{}, p, arch_of(100))), "");
  EXPECT_EQ(reason({.warpgroups = 5}), "warpgroups is not in 1..4");
  EXPECT_EQ(reason({.block_k = 72}), "block_k is not a multiple of 16 up to 256");
  EXPECT_EQ(reason({.stages = 0}), "stages is not in 1..8");
  EXPECT_EQ(reason({.q_buffers = 3}), "q_buffers is not 1 or 2");
  EXPECT_EQ(reason({.flat = true, .schedule = kPersistent}), "flat needs two Q buffers");
  EXPECT_EQ(reason({.block_k = 64, .q_buffers = 2, .flat = true}),
            "flat needs blocks that go on to other rows");
  EXPECT_EQ(reason({.warpgroups = 1, .turn = kExpTurn}),
            "one warpgroup has nobody to take turns with");
  EXPECT_EQ(reason({.producer_registers = 20}), "producer_registers is not 24, 32, 40, 48 or 56");
  EXPECT_EQ(reason({.mask_path = MaskPath::staged}), "there is no mask to stage");
  EXPECT_EQ(reason({.mask_path = MaskPath(3)}), "mask_path is not in 0..2");
  EXPECT_EQ(reason({.maxima = RowMaxima(3)}), "maxima is not in 0..2");
  EXPECT_EQ(reason({.sums = RowSums(-1)}), "sums is not in 0..2");
  EXPECT_EQ(reason({.maxima = RowMaxima::first}), "");
  EXPECT_EQ(
      reason({.block_k = 64, .maxima = RowMaxima::first, .producer_registers = 40, .copy = 16}),
      "first maxima need TMA, which can bring tiles again");
  EXPECT_EQ(reason({.block_k = 64, .producer_registers = 40, .pack_gqa = true, .copy = 16}),
            "packed heads come by TMA");
  Problem other = p;
  other.dtype = DType::f32;
  EXPECT_STREQ(invalid_reason(WgmmaConfig{.maxima = RowMaxima::first}, other, h200),
               "fp32 adds up O by itself, where a new maximum costs nothing");
  EXPECT_STREQ(invalid_reason(WgmmaConfig{.sums = RowSums::rounded}, other, h200),
               "sums of rounded weights are not exact enough for fp32");
  other = p;
  other.softcap = true;
  EXPECT_STREQ(invalid_reason(WgmmaConfig{.maxima = RowMaxima::first}, other, h200),
               "first maxima need scores that are products");
  other = p;
  other.heads_q = 24;
  EXPECT_STREQ(invalid_reason(WgmmaConfig{.pack_gqa = true}, other, h200),
               "pack_gqa needs a group of heads that divides 64");
  other.heads_q = 32;
  other.mask = MaskKind::f16;
  EXPECT_STREQ(
      invalid_reason(WgmmaConfig{.mask_path = MaskPath::staged, .pack_gqa = true}, other, h200),
      "a staged mask needs one head a tile");
  EXPECT_EQ(reason({.block_k = 64, .producer_registers = 40, .copy = 16}), "");
  EXPECT_EQ(reason({.producer_registers = 40, .copy = 1}), "copy is not 0, 2, 4, 8 or 16");
  EXPECT_EQ(reason({.copy = 8}), "threads that copy tiles need 40 registers");
  EXPECT_EQ(reason({.mask_path = MaskPath::staged, .copy = 8}), "a staged mask comes by TMA");
  Problem odd = p;
  odd.dim = 33;
  EXPECT_STREQ(invalid_reason(WgmmaConfig{}, odd, h200), "TMA needs rows in multiples of 16 bytes");
  EXPECT_STREQ(invalid_reason(WgmmaConfig{.copy = 4}, odd, h200),
               "a head dimension is not a multiple of what is copied at once");
  EXPECT_EQ(reason({.warpgroups = 4, .block_k = 128}),
            "the accumulators need more registers than a consumer has");
  EXPECT_EQ(reason({.stages = 6}), "the tiles need more shared memory than a block has");
  Problem lse = p;
  lse.lse = true;
  for (RowSums sums : {RowSums::rounded, RowSums::tensor})
    EXPECT_STREQ(invalid_reason(WgmmaConfig{.sums = sums}, lse, h200),
                 "sums of rounded weights are not exact enough here");
}

TEST(WgmmaConfig, IsWrittenAndReadBack) {
  const WgmmaChoice c{{.warpgroups = 3,
                       .block_k = 80,
                       .stages = 3,
                       .q_buffers = 2,
                       .flat = true,
                       .turn = kExpTurn,
                       .maxima = RowMaxima::first,
                       .sums = RowSums::tensor,
                       .early_exps = 6,
                       .schedule = kDynamic,
                       .producer_registers = 40,
                       .mask_path = MaskPath::staged_late,
                       .pack_gqa = true},
                      8};
  const std::string text = to_string(config_of(c));
  EXPECT_EQ(text, "wgmma.wg3.bk80.st3.qb2.fl1.tu2.mx2.su2.ee6.sc2.l28.pr40.mp2.pg1");
  Config parsed;
  ASSERT_TRUE(parse_config(text, &parsed));
  EXPECT_EQ(typed<WgmmaChoice>(parsed), c);
  // How tiles are copied is not chosen, so it is not written.
  WgmmaChoice copied = c;
  copied.copy = 8;
  EXPECT_EQ(to_string(config_of(copied)), text);
  for (const char* wrong : {".mp3", ".mp0", ".mp", ".mp2.pg0", ".cp8"}) {
    const std::string plain = to_string(config_of(WgmmaConfig{}));
    EXPECT_FALSE(parse_config(plain + wrong, &parsed)) << wrong;
  }
}

// What no kernel reads is in the printed form and the plan, and not in the kernel.
TEST(WgmmaConfig, TheGroupOfHeadsIsThePlansAlone) {
  const Request r = request(problem(8, 32, 8192, 128, true));
  const Rung& rung = *rung_named("wgmma");
  const WgmmaConfig c{.schedule = kPersistent};
  const Plan few = rung.plan(r, config_of(WgmmaChoice{c, 4}));
  const Plan many = rung.plan(r, config_of(WgmmaChoice{c, 32}));
  EXPECT_NE(few.id, many.id);
  EXPECT_NE(few.blocks.divisors.heads_of_group.divisor,
            many.blocks.divisors.heads_of_group.divisor);
  EXPECT_EQ(few.units[0], many.units[0]);
  EXPECT_EQ(jit::hash_of(few.units[0]), jit::hash_of(many.units[0]));
  EXPECT_EQ(jit::emit(few.units[0]), jit::emit(many.units[0]));
  EXPECT_EQ(jit::emit(few.units[0]).find("group_mb"), std::string::npos);
}

// How tensors lie decides how their tiles are copied, whatever config is asked for.
TEST(WgmmaConfig, CopiesFollowFromTheLayout) {
  Request r = request(problem(8, 32, 1024, 128));
  const Config c = config_of(WgmmaConfig{.block_k = 64, .producer_registers = 40});
  const Rung& rung = *rung_named("wgmma");
  EXPECT_EQ(value_of(rung.plan(r, c).config(), "copy"), 0);
  EXPECT_FALSE(rung.plan(r, c).maps.empty());
  r.layout = {.rows16 = false, .step = 8};
  EXPECT_EQ(rung.cannot_run(r, c), "");
  EXPECT_EQ(value_of(rung.plan(r, c).config(), "copy"), 8);
  EXPECT_TRUE(rung.plan(r, c).maps.empty());
  EXPECT_EQ(rung.misfit(r, c), "TMA needs aligned rows, one after another");
}

// Rows of users' tables, and runs on disk.
TEST(WgmmaConfig, OlderFormsAreRead) {
  const struct {
    const char *older, *now;
  } kForms[] = {
      {"wgmma.wg2.bk128.st2.qb2.ov1.fl0.tu0.lz1.ts1.po0.ee4.sc1.sk1.l216.pr40.sm0.fm1",
       "wgmma.wg2.bk128.st2.qb2.fl0.tu0.mx2.su2.ee4.sc1.l216.pr40"},
      {"wgmma.wg2.bk64.st2.qb1.ov1.fl0.tu0.lz0.ts0.po0.ee4.sc0.sk1.l28.pr40.sm0.cp8",
       "wgmma.wg2.bk64.st2.qb1.fl0.tu0.mx0.su0.ee4.sc0.l28.pr40"},
      {"wgmma.wg4.bk64.st3.qb1.ov1.fl0.tu1.lz1.ts0.po0.ee4.sc2.sk1.l216.pr32.sm1.lm1.pg1.rs1",
       "wgmma.wg4.bk64.st3.qb1.fl0.tu1.mx1.su1.ee4.sc2.l216.pr32.mp2.pg1"},
      {"wgmma.wg2.bk64.st2.qb1.ov1.fl0.tu0.lz0.ts0.po0.ee4.sc0.sk1.l28.pr40.sm1",
       "wgmma.wg2.bk64.st2.qb1.fl0.tu0.mx0.su0.ee4.sc0.l28.pr40.mp1"},
  };
  Config parsed;
  for (const auto& form : kForms) {
    ASSERT_TRUE(parse_config(form.older, &parsed)) << form.older;
    EXPECT_EQ(to_string(parsed), form.now);
  }
  // Kernels that are no more, and what is no config at all.
  const std::string older = kForms[0].older;
  for (const auto& [from, to] : {std::pair{"ov1", "ov0"},
                                 {"po0", "po2"},
                                 {"sk1", "sk0"},
                                 {"fm1", "fm1.cl2"},
                                 {"lz1", "lz0"},
                                 {"fm1", "fm1.rs1"},
                                 {"wg2", "wg02"},
                                 {"fm1", "fm1.x1"},
                                 {".pr40", ""}}) {
    std::string text = older;
    text.replace(text.find(from), std::string(from).size(), to);
    EXPECT_FALSE(parse_config(text, &parsed)) << text;
  }
}

}  // namespace
}  // namespace attune
