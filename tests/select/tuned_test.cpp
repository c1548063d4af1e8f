#include "src/select/tuned.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/cpu/fused.hpp"
#include "src/select/cuda_select.hpp"
#include "tests/api/sample.hpp"
#include "tests/rungs/configs.hpp"

namespace attune {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Sample;

constexpr const char* kConfig = "mr6.nv2.exp6.bq96.bk64.sp0.dot2.pv1.rs4";

TunedRow cpu_row(TunedSizes sizes = {8, 1024, 1024}) {
  TunedRow row;
  row.key = "cpu.attn_fwd.f32.d64";
  row.machine = {"AVX2", "A processor", 2};
  row.sizes = sizes;
  row.config = kConfig;
  row.provenance = R"({"date":"2026-11-15","speedup":{"low":1.1,"mid":1.2,"high":2}})";
  return row;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string table_text(const std::string& rows, const std::string& more = "") {
  return R"({"format": "attune tuned table", "schema": 1, "rows": [)" + rows + "]" + more + "}";
}

std::string nested(size_t levels) {
  std::string text;
  for (size_t n = 0; n < levels; ++n) text += n % 2 == 0 ? R"({"a":)" : "[";
  text += "1";
  for (size_t n = levels; n-- > 0;) text += n % 2 == 0 ? "}" : "]";
  return text;
}

std::string many_rows(size_t count) {
  std::string text = "{}";
  for (size_t n = 1; n < count; ++n) text += ",{}";
  return text;
}

// A folder of its own, which is the cache folder for as long as the test runs.
class Tuned : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/attune-tuned-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    if (const char* before = std::getenv("ATTUNE_CACHE_DIR")) before_ = before;
    setenv("ATTUNE_CACHE_DIR", name, 1);
    path_ = table_path();
    reload_tuned();
  }
  void TearDown() override {
    if (before_.empty())
      unsetenv("ATTUNE_CACHE_DIR");
    else
      setenv("ATTUNE_CACHE_DIR", before_.c_str(), 1);
    use_tuned(true);
    reload_tuned();
    fs::remove_all(dir_);
  }

  void add(const TunedRow& row) {
    const Status status = add_tuned_row(path_, row);
    ASSERT_TRUE(status.ok()) << status.message;
  }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  std::string dir_, before_, path_;
};

// ---- files ----

TEST_F(Tuned, ATableThatIsNotThereIsEmpty) {
  EXPECT_EQ(path_, dir_ + "/tuned.json");
  const TunedRows rows = read_tuned(path_);
  EXPECT_TRUE(rows.rows.empty());
  EXPECT_EQ(rows.problem, "");
}

TEST_F(Tuned, RoundTrip) {
  TunedRow gpu = cpu_row();
  gpu.key = "sm90.attn_fwd.bf16.d128.causal";
  gpu.machine = {"sm90", "NVIDIA H200", 0};
  gpu.config = to_string(config_of(MmaConfig{}));
  add(cpu_row());
  add(gpu);
  const TunedRows read = read_tuned(path_);
  ASSERT_EQ(read.problem, "");
  ASSERT_EQ(read.rows.size(), 2u);
  const TunedRow* expected[] = {nullptr, &gpu};
  const TunedRow first = cpu_row();
  expected[0] = &first;
  for (size_t n = 0; n < 2; ++n) {
    EXPECT_EQ(read.rows[n].key, expected[n]->key);
    EXPECT_EQ(read.rows[n].machine, expected[n]->machine);
    EXPECT_EQ(read.rows[n].sizes, expected[n]->sizes);
    EXPECT_EQ(read.rows[n].config, expected[n]->config);
    EXPECT_EQ(json::parse(read.rows[n].provenance), json::parse(expected[n]->provenance));
    EXPECT_EQ(read.rows[n].damage, "");
    EXPECT_EQ(read.rows[n].id.size(), 8u);
  }
  EXPECT_NE(read.rows[0].id, read.rows[1].id);
}

TEST_F(Tuned, TheSamePlaceIsReplaced) {
  add(cpu_row({8, 512, 512}));
  add(cpu_row());
  TunedRow again = cpu_row();
  again.config = "mr4.nv2.exp5.bq96.bk64.sp0.dot2.pv0.rs8";
  add(again);
  const TunedRows read = read_tuned(path_);
  ASSERT_EQ(read.rows.size(), 2u);
  EXPECT_EQ(read.rows[1].config, again.config);
}

TEST_F(Tuned, RemoveTakesOnlyWhatIsNamed) {
  for (int64_t seq : {256, 512, 1024}) add(cpu_row({8, seq, seq}));
  const std::vector<TunedRow> rows = read_tuned(path_).rows;
  ASSERT_TRUE(remove_tuned_rows(path_, {rows[1].id}).ok());
  const std::vector<TunedRow> left = read_tuned(path_).rows;
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].id, rows[0].id);
  EXPECT_EQ(left[1].id, rows[2].id);
  const Status again = remove_tuned_rows(path_, {rows[0].id, rows[1].id});
  EXPECT_EQ(again.message, "no row " + rows[1].id + " in " + path_);
  EXPECT_EQ(read_tuned(path_).rows.size(), 2u) << "all or nothing";
}

TEST_F(Tuned, RowsThatAreNoneAreNotAdded) {
  TunedRow row = cpu_row();
  row.config = "mr6.nv2";  // a config has one spelling
  EXPECT_NE(add_tuned_row(path_, row).message.find("mr6.nv2 is not a config"), std::string::npos);
  row = cpu_row({8, 0, 1024});
  EXPECT_NE(add_tuned_row(path_, row).message.find("seq_q"), std::string::npos);
  row = cpu_row();
  for (const std::string& wrong : {std::string("me"), std::string("\"me\""), std::string("{}, {}"),
                                   std::string(14, '[') + std::string(14, ']')}) {
    row.provenance = wrong;
    EXPECT_NE(add_tuned_row(path_, row).message.find("provenance"), std::string::npos) << wrong;
  }
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(Tuned, TwoProcessesLoseNoRow) {
  constexpr int kRows = 20;
  const auto work = [&](int64_t heads) {
    for (int n = 0; n < kRows; ++n)
      if (!add_tuned_row(path_, cpu_row({heads, n + 1, 1})).ok()) return false;
    return true;
  };
  const pid_t child = fork();
  if (child == 0) _exit(work(1) ? 0 : 1);
  EXPECT_TRUE(work(2));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const TunedRows read = read_tuned(path_);
  EXPECT_EQ(read.problem, "");
  EXPECT_EQ(read.rows.size(), 2u * kRows);
  EXPECT_FALSE(fs::exists(path_ + ".tmp"));
}

TEST_F(Tuned, AReaderNeverSeesHalfAFile) {
  add(cpu_row());
  std::thread writer([&] {
    for (int n = 0; n < 30; ++n) add(cpu_row({1, n + 1, 1}));
  });
  for (int n = 0; n < 300; ++n) EXPECT_EQ(read_tuned(path_).problem, "");
  writer.join();
}

TEST_F(Tuned, WhatIsNoTableIsIgnoredWithAReasonAndLeftAlone) {
  add(cpu_row());
  const std::string good = text_of(path_);
  std::string newer = good;
  newer.replace(newer.find("\"schema\": 1"), 11, "\"schema\": 2");
  const struct {
    std::string text, problem;
  } cases[] = {
      {good.substr(0, good.size() / 2), " is damaged: not valid JSON"},
      {std::string(100, '\0'), " is damaged: not valid JSON"},
      {"\xff\xfe{}", " is damaged: not valid JSON"},
      {"[]", " is not a tuned table"},
      {"3", " is not a tuned table"},
      {R"({"name": "left-pad"})", " is not a tuned table"},
      {newer, " has schema 2; this version reads 1"},
      {R"({"format": "attune tuned table"})", " has schema null; this version reads 1"},
      {R"({"format": "attune tuned table", "schema": 1})", " is damaged: it has no rows"},
      {table_text("", R"(, "x": )" + nested(16)), " is damaged: nested more than 16 levels deep"},
      {table_text(R"({"provenance": )" + nested(14) + "}"),
       " is damaged: nested more than 16 levels deep"},
      {std::string(200'000, '['), " is damaged: nested more than 16 levels deep"},
      {table_text(many_rows(4097)), " has 4097 rows; a tuned table has at most 4096"},
      {table_text(many_rows(4096), R"(, "schema": 3)"), " has schema 3; this version reads 1"},
  };
  for (const auto& c : cases) {
    write(c.text);
    const TunedRows read = read_tuned(path_);
    EXPECT_TRUE(read.rows.empty());
    EXPECT_EQ(read.problem, path_ + c.problem);
    for (const Status& status :
         {add_tuned_row(path_, cpu_row()), remove_tuned_rows(path_, {"00000000"})}) {
      EXPECT_EQ(status.code, ATTUNE_INVALID_ARGUMENT);
      EXPECT_TRUE(status.message.starts_with(path_ + c.problem)) << status.message;
    }
    EXPECT_EQ(text_of(path_), c.text);
  }
}

TEST_F(Tuned, ATableHasALargestSize) {
  const std::string whole =
      table_text("", R"(, "x": ")" + std::string(kMostTunedBytes, ' ') + "\"");
  write(whole);
  const std::string reason =
      path_ + " is too large for a tuned table: it has more than 1048576 bytes";
  EXPECT_EQ(read_tuned(path_).problem, reason);
  EXPECT_EQ(add_tuned_row(path_, cpu_row()).message, reason);
  write(table_text("", R"(, "x": ")" + std::string(kMostTunedBytes - 1000, ' ') + "\""));
  EXPECT_EQ(read_tuned(path_).problem, "");
  TunedRow large = cpu_row();
  large.provenance = R"({"x": ")" + std::string(1000, ' ') + "\"}";
  const Status status = add_tuned_row(path_, large);  // and no table that could not be read again
  EXPECT_NE(status.message.find("would be too large"), std::string::npos) << status.message;
  write(table_text(many_rows(kMostTunedRows)));
  EXPECT_EQ(read_tuned(path_).rows.size(), kMostTunedRows);
  EXPECT_NE(add_tuned_row(path_, cpu_row()).message.find("would be too large"), std::string::npos);
}

TEST_F(Tuned, WhatElseATableSaysStays) {
  write(table_text("", R"(, "note": {"by": "me", "x": [1, 2.5, "ä", null, [], {}]})"));
  add(cpu_row());
  EXPECT_EQ(text_of(path_), nlohmann::ordered_json::parse(text_of(path_)).dump(2) + "\n");
}

TEST_F(Tuned, ADamagedRowSpoilsNoOther) {
  add(cpu_row());
  add(cpu_row({8, 512, 512}));
  add(cpu_row({8, 256, 256}));
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(text_of(path_));
  document["rows"][0]["sizes"]["seq_k"] = "many";
  document["rows"][1]["config"] = "mr6.nv2.exp6.bq";
  document["rows"].push_back(7);
  write(document.dump());
  const std::vector<TunedRow> rows = read_tuned(path_).rows;
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].damage, "seq_k is missing or wrong");
  EXPECT_EQ(rows[1].damage, "mr6.nv2.exp6.bq is not a config of this version");
  EXPECT_EQ(rows[2].damage, "");
  EXPECT_EQ(rows[3].damage, "key is missing or wrong");

  add(cpu_row({8, 128, 128}));  // what is damaged stays for people to look at
  const auto after = nlohmann::ordered_json::parse(text_of(path_));
  for (size_t n = 0; n < 4; ++n) EXPECT_EQ(after["rows"][n], document["rows"][n]);
  EXPECT_EQ(after["rows"].size(), 5u);
  ASSERT_TRUE(remove_tuned_rows(path_, {rows[0].id, rows[1].id, rows[3].id}).ok());
  EXPECT_EQ(read_tuned(path_).rows.size(), 2u);
}

TEST_F(Tuned, NumbersThatNoFieldHolds) {
  for (const char* number : {"1e300", "-1", "18446744073709551615", "0", "1.5"}) {
    const std::string text = std::string(R"({"format": "attune tuned table", "schema": 1, "rows": [
        {"key": "cpu.x", "machine": {"arch": "a", "device": "b", "threads": 1},
         "sizes": {"heads": )") +
                             number + R"(, "seq_q": 1, "seq_k": 1},
         "config": "", "provenance": {}}]})";
    const TunedRows rows = parse_tuned(text, "it");
    ASSERT_EQ(rows.rows.size(), 1u) << rows.problem;
    EXPECT_EQ(rows.rows[0].damage, "heads is missing or wrong") << number;
  }
}

TEST_F(Tuned, ALinkStaysALink) {
  const std::string real = dir_ + "/real.json";
  fs::create_symlink(real, path_);
  std::ofstream(real) << "";  // an empty file has nothing to lose
  add(cpu_row());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(read_tuned(real).rows.size(), 1u);
}

TEST_F(Tuned, FoldersAreMadeAndWhatCannotBeIsSaid) {
  EXPECT_TRUE(add_tuned_row(dir_ + "/a/b/t.json", cpu_row()).ok());
  EXPECT_EQ(read_tuned(dir_ + "/a/b/t.json").rows.size(), 1u);
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_NE(add_tuned_row(dir_ + "/file/t.json", cpu_row()).message.find(dir_ + "/file"),
            std::string::npos);
  EXPECT_EQ(read_tuned(dir_).problem, dir_ + " is not a file");
  EXPECT_NE(add_tuned_row("", cpu_row()).message.find("ATTUNE_CACHE_DIR"), std::string::npos);
}

TEST(ShippedTuned, EveryRowCanBeReadAndSaysWhereItComesFrom) {
  const TunedRows shipped = shipped_tuned();
  EXPECT_FALSE(shipped.rows.empty());
  for (const TunedRow& row : shipped.rows) {
    EXPECT_EQ(row.damage, "") << row.key;
    EXPECT_EQ(row.id.size(), 8u);
    const json provenance = json::parse(row.provenance);
    for (const char* fact : {"date", "version", "speedup"})
      EXPECT_TRUE(provenance.contains(fact)) << row.key << " " << fact;
  }
}

// ---- lookup ----

std::string yes(const TunedRow&) { return ""; }

TunedTable table_of(std::vector<TunedRow> user, std::vector<TunedRow> shipped = {}) {
  TunedTable table;
  table.path = "/t.json";
  for (auto* rows : {&user, &shipped})
    for (TunedRow& row : *rows)
      row.origin = (rows == &user ? "user table /t.json, row s" : "shipped table, row s") +
                   std::to_string(row.sizes.seq_q);
  table.user.rows = std::move(user);
  table.shipped.rows = std::move(shipped);
  return table;
}

TunedQuery query(TunedSizes sizes) {
  return {.key = "cpu.attn_fwd.f32.d64", .machine = {"AVX2", "A processor", 2}, .sizes = sizes};
}

TEST(FindTuned, NearestWithinReach) {
  const TunedTable table = table_of({cpu_row({8, 512, 512}), cpu_row({8, 1024, 1024})});
  const auto found = [&](TunedSizes sizes) {
    const TunedAnswer answer = find_tuned(table, query(sizes), yes);
    return answer.row != nullptr ? answer.row->sizes.seq_q : 0;
  };
  EXPECT_EQ(found({8, 512, 512}), 512);
  EXPECT_EQ(found({8, 1024, 1024}), 1024);
  EXPECT_EQ(found({8, 700, 700}), 512);
  EXPECT_EQ(found({8, 750, 750}), 1024) << "both are in reach; this one is nearer";
  EXPECT_EQ(found({8, 1536, 1536}), 1024);
  EXPECT_EQ(found({8, 1537, 1537}), 0) << "more rows than one and a half times as many";
  EXPECT_EQ(found({16, 1024, 1024}), 0);
  EXPECT_EQ(found({16, 512, 1024}), 1024) << "as many rows, of more heads";
  EXPECT_EQ(found({4, 1024, 1000}), 512) << "as many rows, of fewer heads";
  EXPECT_EQ(found({17, 512, 1024}), 0) << "one size beyond a factor of two is too far";
  EXPECT_EQ(found({8, 512, 1025}), 0);
  EXPECT_EQ(found({8, 341, 341}), 0);
  EXPECT_EQ(found({8, 342, 342}), 512);
  EXPECT_EQ(found({8, 1024, 0}), 0);
  EXPECT_EQ(found({8, std::numeric_limits<int64_t>::max(), 1}), 0);
}

TEST(FindTuned, CallsWithLseTakeRowsWithoutItWhereNoneIsTheirs) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = 1024;
  p.dim = p.dim_v = 64;
  EXPECT_EQ(tuned_query(p, "cpu").key_without_lse, "");
  p.lse = true;
  TunedQuery q = tuned_query(p, "cpu");
  EXPECT_EQ(q.key, "cpu.attn_fwd.f32.d64.lse");
  EXPECT_EQ(q.key_without_lse, "cpu.attn_fwd.f32.d64");
  q = query({8, 1024, 1024});
  std::swap(q.key, q.key_without_lse);
  q.key = "cpu.attn_fwd.f32.d64.lse";
  TunedRow far = cpu_row({8, 900, 900});
  far.key = q.key;
  const TunedTable without = table_of({cpu_row({8, 1024, 1024})});
  ASSERT_NE(find_tuned(without, q, yes).row, nullptr);
  const TunedTable both = table_of({cpu_row({8, 1024, 1024}), far});
  ASSERT_NE(find_tuned(both, q, yes).row, nullptr);
  EXPECT_EQ(find_tuned(both, q, yes).row->key, q.key) << "its own, though another is nearer";
  const auto refused = [&](const TunedRow& row) {
    return row.key == q.key ? std::string("it cannot run") : std::string();
  };
  ASSERT_NE(find_tuned(both, q, refused).row, nullptr);
  EXPECT_EQ(find_tuned(both, q, refused).row->key, "cpu.attn_fwd.f32.d64");
}

TEST(FindTuned, OtherKeysAndMachinesDoNotMatch) {
  const TunedTable table = table_of({cpu_row()});
  TunedQuery q = query({8, 1024, 1024});
  EXPECT_NE(find_tuned(table, q, yes).row, nullptr);
  q.key += ".causal";
  EXPECT_EQ(find_tuned(table, q, yes).row, nullptr);
  q = query({8, 1024, 1024});
  q.machine.device = "Another";
  TunedAnswer answer = find_tuned(table, q, yes);
  EXPECT_EQ(answer.row, nullptr);
  EXPECT_TRUE(answer.passed_over.empty()) << "other machines' rows are nobody's business here";
  q = query({8, 1024, 1024});
  q.machine.arch = "AVX3";
  answer = find_tuned(table, q, yes);
  EXPECT_EQ(answer.row, nullptr);
  ASSERT_EQ(answer.passed_over.size(), 1u);
  EXPECT_EQ(answer.passed_over[0],
            "user table /t.json, row s1024: tuned for AVX2; this call runs on AVX3");
  q = query({8, 1024, 1024});
  q.machine.threads = 4;
  answer = find_tuned(table, q, yes);
  EXPECT_EQ(answer.row, nullptr);
  ASSERT_EQ(answer.passed_over.size(), 1u);
  EXPECT_EQ(answer.passed_over[0],
            "user table /t.json, row s1024: tuned with 2 threads; this call has 4");
}

TEST(FindTuned, UserRowsGoBeforeShippedOnes) {
  const TunedTable table =
      table_of({cpu_row({8, 800, 800})}, {cpu_row(), cpu_row({8, 4096, 4096})});
  TunedAnswer answer = find_tuned(table, query({8, 1024, 1024}), yes);
  EXPECT_EQ(answer.row, &table.user.rows[0]);
  EXPECT_EQ(answer.from, "tuned: user table /t.json, row s800, 2026-11-15");
  answer = find_tuned(table, query({8, 4096, 4096}), yes);
  EXPECT_EQ(answer.row, &table.shipped.rows[1]);
  EXPECT_EQ(answer.from, "tuned: shipped table, row s4096, 2026-11-15");
}

TEST(FindTuned, WhatCannotRunIsPassedOverForTheNext) {
  TunedTable table = table_of({cpu_row(), cpu_row({8, 900, 900})}, {cpu_row({8, 700, 700})});
  table.user.rows[1].damage = "it is damaged";
  const TunedAnswer answer = find_tuned(
      table, query({8, 1024, 1024}),
      [](const TunedRow& row) -> std::string { return row.sizes.seq_q == 1024 ? "no" : ""; });
  EXPECT_EQ(answer.row, &table.shipped.rows[0]);
  EXPECT_EQ(answer.passed_over,
            (std::vector<std::string>{"user table /t.json, row s1024: no",
                                      "user table /t.json, row s900: it is damaged"}));
}

// ---- calls on the CPU ----

// A row for the sample's call, as `attune evolve` would write it here.
TunedRow row_here(const attune_args& args) {
  TunedRow row;
  row.key = "cpu.attn_fwd.f32.d8.dv6.gqa2";
  row.machine = {cpu::isa_name(), processor_name(), args.threads};
  row.sizes = {8, 5, 7};
  row.config = kConfig;
  row.provenance = R"({"date": "2026-11-15"})";
  return row;
}

class TunedCall : public Tuned {
 protected:
  TunedCall() { s_.a.mode = ATTUNE_FUSED; }

  json explained() const { return json::parse(explain(s_.a)); }
  // Of the fused rung.
  std::string passed_over() const {
    const json text = explained();
    const json& fused = text["candidates"][0];
    return fused.contains("passed_over") ? fused["passed_over"].dump() : "";
  }
  void expect_default() const {
    const json text = explained();
    EXPECT_EQ(text["config_from"], "default");
    EXPECT_NE(text["config"], kConfig);
  }

  Sample s_;
};

TEST_F(TunedCall, UsesTheRowAndComputesRight) {
  expect_default();
  EXPECT_FALSE(explained()["candidates"][0].contains("passed_over"));
  add(row_here(s_.a));
  expect_default();  // tables are read once
  reload_tuned();
  const json text = explained();
  const std::string id = read_tuned(path_).rows[0].id;
  EXPECT_EQ(text["config"], kConfig);
  EXPECT_EQ(text["chosen"], std::string("cpu.attn_fwd.f32.d8.dv6.gqa2.lse/") + kConfig);
  EXPECT_EQ(text["config_from"], "tuned: user table " + path_ + ", row " + id + ", 2026-11-15");
  EXPECT_EQ(text["candidates"][0]["config_from"], text["config_from"]);
  EXPECT_FALSE(text["candidates"][1].contains("config_from")) << "naive has no config";

  ASSERT_EQ(attune_forward(&s_.a), ATTUNE_OK) << attune_last_error();
  const std::vector<float> out = s_.m.out;
  s_.a.mode = ATTUNE_REFERENCE;
  ASSERT_EQ(attune_forward(&s_.a), ATTUNE_OK) << attune_last_error();
  for (size_t n = 0; n < out.size(); ++n) EXPECT_NEAR(out[n], s_.m.out[n], 1e-5) << n;
}

TEST_F(TunedCall, CanBeSwitchedOff) {
  add(row_here(s_.a));
  reload_tuned();
  use_tuned(false);
  EXPECT_EQ(tuned_table(), nullptr);
  expect_default();
  use_tuned(true);
  EXPECT_EQ(explained()["config"], kConfig);
}

TEST_F(TunedCall, OtherThreadsSizesAndInstructionSetsGetTheDefault) {
  add(row_here(s_.a));
  reload_tuned();
  s_.a.threads = 2;
  expect_default();
  EXPECT_NE(passed_over().find("tuned with 1 threads; this call has 2"), std::string::npos);
  s_.a.threads = 1;
  EXPECT_EQ(explained()["config"], kConfig);
  s_.a.k.shape[2] = s_.a.v.shape[2] = 3;
  expect_default();
  s_.a.k.shape[2] = s_.a.v.shape[2] = 6;
  EXPECT_EQ(explained()["config"], kConfig);

  const std::vector<std::string> isas = cpu::isa_names();
  const std::string before = cpu::isa_name();
  for (const std::string& isa : isas) {
    ASSERT_TRUE(cpu::force_isa(isa));
    if (isa == before) continue;
    expect_default();
    EXPECT_NE(passed_over().find("tuned for " + before), std::string::npos) << passed_over();
  }
  cpu::force_isa(before);
}

// A row may name another instruction set than the one in use: then that one computes, bit by bit.
TEST_F(TunedCall, ARowCanBeForAnotherInstructionSet) {
  const std::vector<std::string> isas = cpu::isa_names();
  const std::string before = cpu::isa_name();
  for (const std::string& in_use : isas)
    for (const std::string& wanted : isas) {
      SCOPED_TRACE(in_use + " in use, row for " + wanted);
      std::vector<float> out[2];
      for (const bool by_row : {false, true}) {
        ASSERT_TRUE(cpu::force_isa(by_row ? in_use : wanted));
        TunedRow row = row_here(s_.a);
        if (by_row) row.config = wanted + "." + kConfig;
        add(row);
        EXPECT_EQ(why_not_here(read_tuned(path_).rows.back()), "");
        reload_tuned();
        const json text = explained();
        EXPECT_EQ(text["config"], kConfig);
        EXPECT_EQ(text["isa"], wanted);
        const bool named = by_row && wanted != in_use;
        EXPECT_EQ(text["chosen"],
                  "cpu.attn_fwd.f32.d8.dv6.gqa2.lse/" + (named ? wanted + "." : "") + kConfig);
        std::fill(s_.m.out.begin(), s_.m.out.end(), 0.f);
        ASSERT_EQ(attune_forward(&s_.a), ATTUNE_OK) << attune_last_error();
        out[by_row] = s_.m.out;
        ASSERT_TRUE(remove_tuned_rows(path_, {read_tuned(path_).rows.back().id}).ok());
      }
      EXPECT_EQ(out[0], out[1]);
    }
  cpu::force_isa(before);
  TunedRow row = row_here(s_.a);
  row.config = std::string("Z80.") + kConfig;
  add(row);
  reload_tuned();
  expect_default();
  EXPECT_NE(passed_over().find("Z80 does not run here"), std::string::npos) << passed_over();
  EXPECT_EQ(why_not_here(read_tuned(path_).rows[0]), "Z80 does not run here");
}

TEST_F(TunedCall, AConfigThatCannotRunIsPassedOver) {
  TunedRow row = row_here(s_.a);
  row.config = "mr6.nv2.exp4.bq96.bk64.sp0.dot2.pv0.rs8";
  add(row);
  reload_tuned();
  expect_default();
  EXPECT_NE(passed_over().find("exp_degree 4 is too coarse for fp32"), std::string::npos);
  EXPECT_EQ(attune_forward(&s_.a), ATTUNE_OK);
}

// Which row is nearest depends on the batch, and another config gives other bits.
TEST_F(TunedCall, BatchInvariantCallsTakeNoRow) {
  add(row_here(s_.a));
  reload_tuned();
  s_.a.batch_invariant = 1;
  expect_default();
  EXPECT_NE(passed_over().find("batch_invariant: which row is nearest depends on the batch"),
            std::string::npos);
}

TEST_F(TunedCall, ADamagedTableFailsNoCall) {
  write("{\"format\": \"attune tu");
  reload_tuned();
  expect_default();
  EXPECT_NE(passed_over().find(path_ + " is damaged: not valid JSON"), std::string::npos);
  EXPECT_EQ(attune_forward(&s_.a), ATTUNE_OK);
}

// No lock is held at the moment of a fork: the child reads on.
TEST_F(TunedCall, ManyThreadsAndAForkedChild) {
  add(row_here(s_.a));
  reload_tuned();
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([] {
      for (int i = 0; i < 20; ++i) {
        if (i % 5 == 0) reload_tuned();
        EXPECT_EQ(tuned_table()->user.rows.size(), 1u);
      }
    });
  const pid_t child = fork();
  // By the system call itself: a sanitizer's _exit would miss the threads that no child has.
  if (child == 0) syscall(SYS_exit_group, tuned_table()->user.rows.size() == 1 ? 0 : 1);
  for (std::thread& t : threads) t.join();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Tuned, WhyNotHere) {
  Sample s;
  TunedRow row = row_here(s.a);
  EXPECT_EQ(why_not_here(row), "");
  const TunedRow good = row;
  row.config = "mr6.nv2.exp6.bq96.bk9999.sp0.dot2.pv1.rs4";
  EXPECT_EQ(why_not_here(row), "block_k is not in 1..256");
  row.config = "mr6.nv2.exp6.bq96.bk64.sp0.dot2.pv1.rs-nan";
  EXPECT_EQ(why_not_here(row), "rescale_threshold is not in 0..32");
  row.config = "mr6.nv2.exp4.bq96.bk64.sp0.dot2.pv1.rs4";
  EXPECT_EQ(why_not_here(row), "exp_degree 4 is too coarse for fp32");
  row.key = "cpu.attn_fwd.bf16.d8.dv6.gqa2.bias";
  EXPECT_EQ(why_not_here(row), "");
  row.key = "cpu.attn_fwd.bf16.d257";
  EXPECT_EQ(why_not_here(row), "a head dimension is not in 1..256");
  row.key = "cpu.attn_fwd.bf16.d64.sideways";
  EXPECT_EQ(why_not_here(row), "cpu.attn_fwd.bf16.d64.sideways is no kernel of this version");
  row = good;
  row.machine.arch = "Z80";
  EXPECT_EQ(why_not_here(row), "tuned for Z80; this machine runs " + cpu::isa_name());
  row.machine.device = "Another";
  EXPECT_EQ(why_not_here(row), "tuned for another processor");
  row.damage = "broken";
  EXPECT_EQ(why_not_here(row), "broken");
}

TEST(ProblemId, IsReadBack) {
  const char* features[] = {".dv32",      ".gqa4",     ".causal",  ".window", ".mask",   ".bias",
                            ".blockmask", ".softcap",  ".alibi",   ".sinks",  ".ragged", ".dropout",
                            ".lse",       ".scoremod", ".maskmod", ".lengths"};
  for (const char* type :
       {"cpu.attn_fwd.f32.d64", "sm90.attn_fwd.f16.d1", "sm90.attn_bwd.bf16.d256"})
    for (const char* feature : features) {
      const std::string id = std::string(type) + feature;
      Problem p;
      ASSERT_TRUE(parse_problem_id(id, &p)) << id;
      EXPECT_EQ(problem_id(p, id.substr(0, id.find('.'))), id);
      EXPECT_TRUE(parse_problem_id(type, &p)) << type;
    }
  Problem p;
  p.dim = 7;
  for (const char* id : {"", "cpu", "cpu.attn_fwd", "cpu.attn_fwd.f32", "cpu.attn_bw.f32.d64",
                         "cpu.attn_fwd.f64.d64", "cpu.attn_fwd.f32.d64.", "cpu.attn_fwd.f32.dx",
                         "cpu.attn_fwd.f32.d64.gqa0", "cpu.attn_fwd.f32.d64.gqa-2",
                         "cpu.attn_fwd.f32.d99999999999", "cpu.attn_fwd.f32.d64.mask.causal"})
    EXPECT_FALSE(parse_problem_id(id, &p)) << id;
  EXPECT_EQ(p.dim, 7);
}

// ---- CUDA ----

Problem cuda_problem() {
  Problem p;
  p.dtype = DType::bf16;
  p.batch = 2;
  p.heads_q = p.heads_kv = 8;
  p.seq_q = p.seq_k = 1024;
  p.dim = p.dim_v = 64;
  return p;
}

MmaConfig tuned_mma() {
  return {.warps_q = 2, .warp_rows = 16, .block_k = 32, .stages = 3, .blocks_sm = 1};
}

TunedRow cuda_row(const Config& config) {
  TunedRow row;
  row.key = "sm90.attn_fwd.bf16.d64";
  row.machine = {"sm90", "NVIDIA H200", 0};
  row.sizes = {16, 1024, 1024};
  row.config = to_string(config);
  return row;
}

// The chosen candidate of a call with this table.
Candidate chosen(const TunedTable& table, const std::function<void(CudaRequest*)>& change = {}) {
  CudaRequest r{
      {cuda_problem(), arch_of(90), {}, SIZE_MAX, "", ""}, ATTUNE_AUTO, "NVIDIA H200", &table};
  if (change) change(&r);
  CudaChoice choice;
  const Status status = select_cuda(r, &choice);
  EXPECT_TRUE(status.ok()) << status.message;
  for (Candidate& c : choice.candidates)
    if (c.reason.empty()) {
      EXPECT_EQ(c.id, choice.plan.id);
      return c;
    }
  return {};
}

TEST(TunedCuda, ARowReplacesTheDefaultOfItsRung) {
  const auto by_mma = [](CudaRequest* r) { r->mode = ATTUNE_MMA; };
  const TunedTable mma = table_of({cuda_row(config_of(tuned_mma()))});
  Candidate c = chosen(mma, by_mma);
  EXPECT_EQ(c.id, "sm90.attn_fwd.bf16.d64/" + to_string(config_of(tuned_mma())));
  EXPECT_EQ(c.config_from, "tuned: user table /t.json, row s1024");
  EXPECT_EQ(chosen(mma).config_from, "default") << "wgmma stays first";

  const WgmmaConfig hopper{.warpgroups = 1, .block_k = 96, .stages = 3};
  c = chosen(table_of({cuda_row(config_of(hopper))}));
  EXPECT_EQ(c.id, "sm90.attn_fwd.bf16.d64/" + to_string(config_of(hopper)));
  EXPECT_EQ(c.config_from, "tuned: user table /t.json, row s1024");

  c = chosen(mma, [](CudaRequest* r) { r->mode = ATTUNE_FUSED; });
  EXPECT_EQ(c.config_from, "default");
  EXPECT_TRUE(c.passed_over.empty()) << "a row of another rung is not about this one";

  const LadderConfig ladder{.rung = Ladder::fused, .block_q = 32, .block_k = 32};
  const TunedTable fused = table_of({cuda_row(config_of(ladder))});
  EXPECT_EQ(chosen(fused, by_mma).config_from, "default") << "mma stays first";
  c = chosen(fused, [](CudaRequest* r) { r->mode = ATTUNE_FUSED; });
  EXPECT_EQ(c.id, "sm90.attn_fwd.bf16.d64/" + to_string(config_of(ladder)));
}

TEST(TunedCuda, OtherGpusSizesAndNoTableGetTheDefault) {
  const TunedTable table = table_of({cuda_row(config_of(tuned_mma()))});
  for (const auto& change : std::vector<std::function<void(CudaRequest*)>>{
           [](CudaRequest* r) { r->device = "NVIDIA H100"; },
           [](CudaRequest* r) { r->arch = arch_of(80); },
           [](CudaRequest* r) { r->problem.seq_k = 4096; },
           [](CudaRequest* r) { r->problem.causal = true; },
           [](CudaRequest* r) { r->tuned = nullptr; }}) {
    const Candidate c = chosen(table, change);
    EXPECT_EQ(c.config_from, "default");
    EXPECT_TRUE(c.passed_over.empty());
  }
}

TEST(TunedCuda, WhatTheCallDoesNotAllowIsPassedOver) {
  MmaConfig split = tuned_mma();
  split.split_kv = true;
  const auto why = [](const MmaConfig& config, const std::function<void(CudaRequest*)>& change) {
    const TunedTable table = table_of({cuda_row(config_of(config))});
    const Candidate c = chosen(table, [&](CudaRequest* r) {
      r->mode = ATTUNE_MMA;
      if (change) change(r);
    });
    EXPECT_EQ(c.config_from, "default");
    return c.passed_over.size() == 1 ? c.passed_over[0] : "";
  };
  const auto mentions = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string unaligned = why(tuned_mma(), [](CudaRequest* r) {
    r->layout = {false, false};
  });
  EXPECT_TRUE(mentions(unaligned, "its 16-byte copies need aligned rows")) << unaligned;
  const std::string small = why(split, [](CudaRequest* r) { r->workspace_bytes = 1000; });
  EXPECT_TRUE(mentions(small, "bytes; workspace_bytes is 1000")) << small;
  const std::string invariant =
      why(tuned_mma(), [](CudaRequest* r) { r->problem.batch_invariant = true; });
  EXPECT_TRUE(mentions(invariant, "batch_invariant")) << invariant;
  MmaConfig huge = tuned_mma();
  huge.stages = 9;
  const std::string invalid = why(huge, {});
  EXPECT_TRUE(mentions(invalid, "stages is not in 2..4")) << invalid;
}

}  // namespace
}  // namespace attune
