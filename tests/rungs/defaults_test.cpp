// The rows that rungs take their defaults from.
#include "src/rungs/defaults.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <tuple>

#include "src/problem.hpp"
#include "src/rungs/samples.hpp"
#include "src/rungs/wgmma_defaults.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

Problem problem(DType dtype, int dim, int64_t batch, int64_t keys) {
  Problem p;
  p.dtype = dtype;
  p.batch = batch;
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = keys;
  p.dim = p.dim_v = dim;
  return p;
}

TEST(When, SaysWhichCallsItIsFor) {
  const Arch h200 = arch_of(90);
  const Problem p = problem(DType::bf16, 96, 4, 1024);
  const auto holds = [&](const When& when, bool tensor_sums = false) {
    return is_for(when, p, h200, tensor_sums);
  };
  EXPECT_TRUE(holds({}));
  EXPECT_TRUE(holds({.above = 64, .wide = 96}));
  EXPECT_FALSE(holds({.wide = 64}));
  EXPECT_FALSE(holds({.above = 96}));
  EXPECT_TRUE(holds({.bf16 = If::yes, .causal = If::no, .limits = If::no}));
  EXPECT_FALSE(holds({.causal = If::yes}));
  EXPECT_FALSE(holds({.tensor_sums = If::yes}));
  EXPECT_TRUE(holds({.tensor_sums = If::yes}, true));
  EXPECT_TRUE(holds({.keys_from = 1024, .keys_below = 1025}));
  EXPECT_FALSE(holds({.keys_below = 1024}));
  EXPECT_TRUE(holds({.tile_rows = 128, .tiles_sm = 2}));  // 256 tiles, 132 multiprocessors
  EXPECT_FALSE(holds({.tile_rows = 128}));
  EXPECT_FALSE(holds({.mask = MaskKind::f16}));
  EXPECT_EQ(to_string(When{}), "all other calls");
  EXPECT_EQ(to_string(When{.wide = 64, .causal = If::yes, .lse = If::no, .keys_below = 1024}),
            "D <= 64, causal, no LSE, keys < 1024");
  EXPECT_EQ(to_string(When{.above = 128, .tile_rows = 64}),
            "D > 128, at most 1 tile of 64 rows a multiprocessor");
}

// Where no row is for a call there would be no config; few tiles go on to the table of plain
// scores.
TEST(WgmmaDefaults, TablesEndWithARowForAllCalls) {
  for (size_t n = 0; n < wgmma_defaults().size(); ++n) {
    const WgmmaDefaults& table = wgmma_defaults()[n];
    ASSERT_FALSE(table.rows.empty()) << table.name;
    if (WgmmaCalls(n) == WgmmaCalls::few_tiles) continue;
    const std::string last = to_string(table.rows.back().when);
    EXPECT_TRUE(last == "all other calls" || last == "no causal limit or window") << table.name;
    for (const DefaultRow<WgmmaChoice>& row : table.rows)
      EXPECT_NE(std::string(row.source), "") << table.name;
  }
}

// A row that no call takes says nothing.
TEST(WgmmaDefaults, EveryRowIsTheFirstForSomeCall) {
  const Arch h200 = arch_of(90);
  std::set<const void*> taken;
  for (DType dtype : {DType::f16, DType::bf16})
    for (int dim : {64, 96, 128, 192, 256})
      for (int64_t batch : {1, 2, 4, 64})
        for (int64_t keys : {256, 512, 2048, 16384})
          for (int flags = 0; flags < 64; ++flags)
            for (MaskKind mask : {MaskKind::f32, MaskKind::boolean, MaskKind::f16})
              for (bool tensor_sums : {false, true}) {
                Problem p = problem(dtype, dim, batch, keys);
                p.causal = flags & 1, p.ragged = flags & 4, p.lse = flags & 8;
                p.dropout = flags & 16, p.mask = mask;
                if (flags & 2) p.window_left = 100;
                for (const WgmmaDefaults& table : wgmma_defaults())
                  for (const DefaultRow<WgmmaChoice>& row : table.rows)
                    if (is_for(row.when, p, h200, tensor_sums)) {
                      taken.insert(&row);
                      break;
                    }
              }
  for (const WgmmaDefaults& table : wgmma_defaults())
    for (const DefaultRow<WgmmaChoice>& row : table.rows)
      EXPECT_TRUE(taken.contains(&row)) << table.name << ": " << to_string(row.when);
}

// What is compiled for the rows is what calls run: each config in each dtype, with LSE and without.
TEST(DefaultCalls, EveryConfigOfACallIsThatOfOne) {
  const Arch h200 = arch_of(90);
  const Rung& rung = *rung_named("wgmma");
  std::set<std::tuple<std::string, DType, bool>> known;
  for (const DefaultCall& call : rung.default_calls(h200)) {
    const Problem& p = call.request.problem;
    EXPECT_EQ(rung.cannot_run(call.request, rung.standard(call.request)), "") << call.when;
    known.insert({to_string(rung.standard(call.request)), p.dtype, p.lse});
  }
  std::mt19937 random(11);
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  int ran = 0;
  for (int n = 0; n < 20000; ++n) {
    const int dim = 8 * int(1 + random() % 32);
    Problem p = problem(one_of(DType::f16, DType::bf16, DType::f32), dim, one_of(1, 2, 3, 8, 50),
                        one_of(200, 512, 1000, 1024, 4096, 8192, 30000));
    p.lse = one_of(false, true), p.causal = one_of(false, true);
    if (one_of(0, 0, 1)) p.window_left = one_of(0, 100);
    if (one_of(0, 0, 1)) p.mask = one_of(MaskKind::f16, MaskKind::f32, MaskKind::boolean);
    p.ragged = one_of(0, 0, 0, 1), p.key_lengths = !p.ragged && one_of(0, 0, 0, 1);
    p.dropout = one_of(0, 0, 0, 1), p.alibi = one_of(0, 0, 0, 1);
    if (one_of(0, 0, 0, 1)) p.block_mask_q = p.block_mask_k = 64;
    if (one_of(0, 0, 0, 1)) p.heads_q = 32, p.seq_q = 10;
    const Request r = sample_request(p, h200, true);
    const Config config = rung.standard(r);
    if (!rung.cannot_run(r, config).empty()) continue;
    ++ran;
    EXPECT_TRUE(known.contains({to_string(config), p.dtype, p.lse}))
        << problem_id(p) << ", " << p.seq_k << " keys: " << to_string(config);
  }
  EXPECT_GT(ran, 10000);
}

TEST(DefaultCalls, EveryRowHasOne) {
  std::set<std::pair<std::string, std::string>> rows;
  for (const DefaultCall& call : rung_named("wgmma")->default_calls(arch_of(90)))
    rows.insert({call.table, call.when});
  for (const WgmmaDefaults& table : wgmma_defaults())
    for (const DefaultRow<WgmmaChoice>& row : table.rows)
      EXPECT_TRUE(rows.contains({table.name, to_string(row.when)}))
          << table.name << ": " << to_string(row.when);
}

TEST(DefaultTexts, ConfigsReadBack) {
  std::set<std::string> rungs;
  for (const DefaultText& row : default_texts()) {
    Config config;
    EXPECT_TRUE(parse_config(row.config, &config)) << row.config;
    EXPECT_EQ(config.rung->name, std::string(row.rung));
    EXPECT_NE(std::string(row.source), "");
    rungs.insert(row.rung);
  }
  EXPECT_EQ(rungs, (std::set<std::string>{"mma", "wgmma"}));
}

// What `attune tuned list --defaults` prints is what calls run.
TEST(DefaultTexts, EachConfigIsWhatSelectionGivesForACall) {
  std::set<std::pair<std::string, std::string>> run, printed;  // table and config
  for (const Rung* rung : rungs())
    for (int cc : {80, 86, 90, 100}) {
      if (!rung->runs_on(cc)) continue;
      for (const DefaultCall& call : rung->default_calls(arch_of(cc))) {
        CudaRequest request{call.request, rung->mode};
        CudaChoice choice;
        ASSERT_TRUE(select_cuda(request, &choice).ok()) << call.table << ": " << call.when;
        for (const Candidate& candidate : choice.candidates)
          if (candidate.reason.empty())
            run.insert({call.table, candidate.id.substr(candidate.id.find('/') + 1)});
      }
    }
  for (const DefaultText& row : default_texts()) {
    EXPECT_TRUE(run.contains({row.table, row.config})) << row.when << ": " << row.config;
    EXPECT_TRUE(printed.insert({row.table, row.when + row.config}).second) << row.when;
  }
  EXPECT_GT(printed.size(), 200u);
}

// Of two configs of one row, the text says which calls run them.
TEST(DefaultTexts, LseIsSaidWhereItDecides) {
  std::set<std::string> texts;
  for (const DefaultText& row : default_texts())
    if (row.rung == std::string("wgmma")) texts.insert(row.when + ": " + row.config);
  EXPECT_TRUE(texts.contains(
      "D <= 128, no LSE: wgmma.wg1.bk128.st3.qb1.fl0.tu0.mx1.su1.ee4.sc0.l216.pr32.pg1"));
  EXPECT_TRUE(texts.contains(
      "D <= 128, LSE: wgmma.wg1.bk128.st3.qb1.fl0.tu0.mx1.su0.ee4.sc0.l216.pr32.pg1"));
}

}  // namespace
}  // namespace attune
