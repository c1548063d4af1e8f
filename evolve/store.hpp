// A run's directory: one SQLite file that has everything, and what is made of it. Each evaluation
// is one transaction: what was committed survives a kill, what was in flight is done again.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/evaluation.hpp"
#include "evolve/evaluator.hpp"
#include "evolve/search.hpp"
#include "src/json.hpp"
#include "src/status.hpp"

namespace attune::evolve {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

// How the run was asked for, and where it runs. Written once, but for the budget.
struct RunMeta {
  std::string version;  // of the library
  std::string device;   // "cpu", "cuda:0"
  std::string machine;  // "AVX3, 2 threads, <model name>"
  std::vector<TimedShape> shapes;
  int threads = 1;
  bool compiles = false;  // kernels that are not built in belong to the space
  std::string strategy = "evolve";
  std::string start = "naive";  // or "current"
  uint64_t seed = 0;
  int window = 1;             // W: proposal n reads results up to n - W
  double budget_seconds = 0;  // 0: none
  int64_t budget_evaluations = 0;
  Json environment;     // processor, ISA, system, load, compiler, sandbox; of a GPU name, memory,
                        // arch, rungs
  std::string created;  // ISO 8601, UTC
};

// One proposal with all that came of it.
struct Record {
  Proposal proposal;
  Candidate candidate;
  Evaluation evaluation;
  Outcome outcome;
  std::string incumbent;  // the id it was held against
  double progress = 0;    // what the strategy was told before it proposed
  double at = 0;          // seconds of searching, over all sittings, when it was committed
};

// JSON that was read from a file. Throws Json::exception where it is none, or deeper than `depth`:
// copies and prints of nlohmann::json go as deep as it on the stack.
Json parse_json(std::string_view text, int depth = kMostJsonDepth);

Json to_json(const RunMeta& meta);
Json to_json(const Record& record);
Json to_json(const Comparison& comparison);
Json to_json(const Noise& noise);
Json to_json(const Interval& interval);
// Back again; all of these throw Json::exception.
RunMeta meta_of(const Json& json);
Record record_of(const Json& json);
Comparison comparison_of(const Json& json);
Noise noise_of(const Json& json);
Interval interval_of(const Json& json);
double number_of(const Json& json);  // those that JSON lacks are "inf", "-inf", "nan"

class Store {
 public:
  // A new run: the folder must not hold one. Refuses file systems that cannot carry SQLite's WAL
  // (NFS, SMB, FUSE, ...), with advice.
  static Status create(const std::string& folder, const RunMeta& meta,
                       std::unique_ptr<Store>* store);
  // An existing one. `exclusive`: to go on with it; refused while another process has it. A schema
  // of another version is refused by both numbers.
  static Status open(const std::string& folder, bool exclusive, std::unique_ptr<Store>* store);
  static bool exists(const std::string& folder);  // whole or damaged
  ~Store();

  const RunMeta& meta() const { return meta_; }
  const std::string& folder() const { return folder_; }

  Status set_budget(double seconds, int64_t evaluations);  // 0: none; the rest of meta stays
  Status append(const Record& record);                     // committed when it returns
  Status records(std::vector<Record>* records) const;      // in order of n

  // One JSON value by name: "noise", "final", "promoted".
  Status put(const std::string& name, const Json& value);
  Json get(const std::string& name) const;  // null: not there

 private:
  Store() = default;
  struct Database;
  std::unique_ptr<Database> database_;
  RunMeta meta_;
  std::string folder_;
};

}  // namespace attune::evolve
