// A run of the optimiser that never took place, for tests of what is kept and shown of one.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "evolve/store/store.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {

// A folder of its own, gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "attune-run-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Two rungs; the upper one has three genes.
class SampleSpace : public Space {
 public:
  const std::vector<Family>& families() const override { return families_; }
  const std::vector<Axis>& axes() const override { return axes_; }
  std::string invalid_reason(const Genome&) const override { return ""; }
  Genome canonical(Genome genome) const override { return genome; }
  Cell cell(const Genome& g) const override {
    if (g.family == 0) return {};
    return {{1, g.genes[0] >= 96 ? 1 : 0, g.genes[1] >= 4 ? 1 : 0}};
  }
  std::string print(const Genome& g) const override {
    if (g.family == 0) return "naive";
    return "fused.bq" + std::to_string(g.genes[0]) + ".mr" + std::to_string(g.genes[1]) + ".pv" +
           std::to_string(g.genes[2]);
  }
  std::optional<Genome> parse(std::string_view) const override { return std::nullopt; }
  Genome library_default() const override { return {1, {64, 6, 0}}; }

 private:
  std::vector<Family> families_{
      {"naive", "the plain loops", {}},
      {"fused",
       "one pass over the keys, <vectors> & tiles",
       {{"block_q", "block", "query rows a task", Level::hardware, false, {32, 64, 96}, true},
        {"mr", "tile", "rows of the register tile", Level::hardware, true, {2, 4, 6}, true},
        {"pack_v", "pack", "copy V into panels", Level::implementation, false, {0, 1}, false}}}};
  std::vector<Axis> axes_{{"family", {"naive", "fused"}},
                          {"working set", {"fits L1", "fits L2"}},
                          {"register tile", {"small", "large"}}};
};

inline RunMeta sample_meta() {
  RunMeta meta;
  meta.version = "0.3.0";
  meta.device = "cpu";
  meta.machine = "AVX3, 2 threads, <Sample & Sons>";
  Problem problem;
  problem.batch = 1;
  problem.heads_q = problem.heads_kv = 8;
  problem.seq_q = problem.seq_k = 1024;
  problem.dim = problem.dim_v = 64;
  meta.shapes = {{"1x8x1024x64", problem, 1}};
  problem.causal = true;
  problem.dtype = DType::bf16;
  meta.shapes.push_back({"1x8x1024x64 causal", problem, 0.5});
  meta.threads = 2;
  meta.seed = 0xfedcba9876543210;
  meta.budget_seconds = 90;
  meta.environment = {{"processor", "Sample"}, {"commit", "0123abc"}, {"load", {0.5, 0.25}}};
  meta.created = "2026-01-02T03:04:05Z";
  return meta;
}

// Record n of a run in which each sixth candidate is better than all before it, and each seventh
// fails.
inline Record sample_record(const Space& space, int64_t n) {
  Record r;
  Proposal& p = r.proposal;
  p.n = n;
  p.genome = n == 0 ? Genome{0, {}}
                    : Genome{1, {32 + 32 * int(n % 3), 2 + 2 * int(n / 3 % 3), int(n / 9 % 2)}};
  p.id = space.print(p.genome) + (n > 17 ? "." + std::to_string(n) : "");
  p.op = n == 0 ? "start" : n == 1 ? "algorithm.climb" : "hardware.tile";
  p.parent = n < 2 ? n - 1 : (n - 2) / 6 * 6 + 1;
  p.island = int(n % 3);
  r.candidate = {p.id, p.id, ""};
  r.incumbent = n == 1 ? "naive" : "another";
  r.progress = double(n) / 100;
  r.at = 0.3 * double(n);
  Evaluation& e = r.evaluation;
  e.source_hash = "aa" + std::to_string(n);
  e.binary_hash = "bb" + std::to_string(n);
  e.seconds = 0.25;
  e.limit = 1e-5;
  if (n % 7 == 5 && n % 6 != 1) {
    e.verdict = n % 2 == 0 ? Verdict::wrong_result : Verdict::crashed;
    e.stage = Stage::check;
    e.why = "<script>alert('" + std::to_string(n) + "')</script> & \"worse\"";
    e.error = std::nan("");
    return r;
  }
  e.stage = Stage::measure;
  e.error = 2e-6;
  r.outcome = {true, n == 0 ? 0 : 3 + 0.1 * double((n - 1) / 6) - (n % 6 == 1 ? 0 : 0.05),
               n % 6 == 1};
  const double speed = std::exp(r.outcome.fitness);
  e.speedup = {1.01, 1.05, 1.09};
  e.p = 0.003;
  for (const char* shape : {"1x8x1024x64", "1x8x1024x64 causal"}) {
    ShapeSamples s{shape, {}, {}};
    for (int i = 0; i < 15; ++i) {
      s.candidate.push_back(0.5 / speed * (1 + 0.01 * (i % 4)));
      s.incumbent.push_back(0.5 / speed * 1.05 * (1 + 0.01 * (i % 3)));
    }
    e.shapes.push_back(s);
  }
  return r;
}

inline Comparison sample_final(const Record& start, const Record& library, const Record& best) {
  Comparison final;
  const Record* const records[] = {&start, &library, &best};
  const double seconds[] = {0.1, 0.002, 0.0016};
  for (int c = 0; c < 3; ++c) {
    final.candidates.push_back(records[c]->candidate);
    Evaluation e = records[c]->evaluation;
    e.shapes.clear();
    e.stage = Stage::promote;
    final.verdicts.push_back(e);
    std::vector<std::vector<double>> shapes(2);
    for (auto& rounds : shapes)
      for (int i = 0; i < 25; ++i) rounds.push_back(seconds[c] * (1 + 0.01 * ((i * (c + 3)) % 5)));
    final.seconds.push_back(shapes);
  }
  return final;
}

// Makes the chain of hashes right again after somebody changed the run, as far as that can be done.
inline void reseal(sqlite3* db) {
  sqlite3_create_function(
      db, "sha256", 1, SQLITE_UTF8, nullptr,
      [](sqlite3_context* context, int, sqlite3_value** values) {
        const unsigned char* bytes = sqlite3_value_text(values[0]);
        const std::string text(bytes != nullptr ? reinterpret_cast<const char*>(bytes) : "",
                               size_t(sqlite3_value_bytes(values[0])));
        const std::string hash = jit::hex(jit::sha256(text));
        sqlite3_result_text(context, hash.c_str(), -1, SQLITE_TRANSIENT);
      },
      nullptr, nullptr);
  std::vector<int64_t> all;
  sqlite3_exec(
      db, "SELECT seq FROM event ORDER BY seq",
      [](void* list, int, char** values, char**) {
        static_cast<std::vector<int64_t>*>(list)->push_back(std::atoll(values[0]));
        return 0;
      },
      &all, nullptr);
  std::string before = "''";
  for (const int64_t seq : all) {
    const std::string at = std::to_string(seq);
    const std::string sql = "UPDATE event SET hash = sha256(" + before +
                            " || char(10) || name || char(10) || json) WHERE seq = " + at;
    sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
    before = "(SELECT hash FROM event WHERE seq = " + at + ")";
  }
}
inline void reseal(const std::string& folder) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder + "/run.db").c_str(), &db), SQLITE_OK);
  reseal(db);
  sqlite3_close(db);
}

// A whole run of `count` records in `folder`.
inline void write_sample_run(const std::string& folder, const Space& space, int64_t count) {
  std::unique_ptr<Store> store;
  const Status created = Store::create(folder, sample_meta(), &store);
  ASSERT_TRUE(created.ok()) << created.message;
  std::vector<Record> records;
  for (int64_t n = 0; n < count; ++n) {
    records.push_back(sample_record(space, n));
    const Status appended = store->append(records.back());
    ASSERT_TRUE(appended.ok()) << appended.message;
  }
  if (count < 20) return;  // such a run was interrupted
  const int64_t best = (count - 2) / 6 * 6 + 1;
  ASSERT_TRUE(store->put("noise", to_json(Noise{{0.99, 1.001, 1.012}, 0.012, 0.004})).ok());
  ASSERT_TRUE(
      store->put("final", to_json(sample_final(records[0], records[2], records[size_t(best)])))
          .ok());
  ASSERT_TRUE(
      store
          ->put("operators",
                Json::array(
                    {{{"name", "algorithm.climb"}, {"tried", 3}, {"valid", 2}, {"improved", 1}},
                     {{"name", "hardware.<tile>"}, {"tried", 40}, {"valid", 31}, {"improved", 9}}}))
          .ok());
}

}  // namespace attune::evolve
