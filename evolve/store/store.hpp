// A run's directory: one SQLite file that has everything, and what is made of it. Each evaluation
// is one transaction: what was committed survives a kill, what was in flight is done again.
//
// The file is a list of events that only grows: what the run was asked for, each evaluation, noise,
// margins, comparisons. Each event has sha256(hash before it, "\n", name, "\n", json) beside it, so
// that none can be changed, moved or removed but at the end without a trace; and there, where the
// last hash is known from elsewhere.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/genome/program_space.hpp"
#include "evolve/judge/evaluation.hpp"
#include "evolve/judge/evaluator.hpp"
#include "evolve/judge/external_spec.hpp"
#include "evolve/judge/rule.hpp"
#include "evolve/propose/search.hpp"
#include "src/json.hpp"
#include "src/status.hpp"

namespace attune::evolve {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 2;
// Runs of this one are read, and not continued: they have no chain of hashes.
constexpr int kOldSchema = 1;

// How the run was asked for, and where it runs. Written once, but for the budget.
struct RunMeta {
  std::string version;  // of the library
  int rule = kRule;     // by which its candidates are judged
  std::string device;   // "cpu", "cuda:0"
  std::string machine;  // "AVX3, 2 threads, <model name>"
  std::vector<TimedShape> shapes;
  int threads = 1;
  // Of a run on a CPU: the facts that its space was made of, so that it is replayed and reported on
  // any machine. Nothing in runs of versions that did not note them.
  std::optional<CpuMachine> cpu;
  bool compiles = false;  // kernels that are not built in belong to the space
  // What calls of each shape ran when the run began, as the space prints it: tuned rows counted.
  // Empty in runs of versions that did not look at them.
  std::vector<std::string> library;
  // Of a run that evolves a program: the program, which is also the bar that candidates must beat,
  // and what calls of the library run of each shape, which is compared with the winner at the end.
  std::optional<ProgramSource> program;
  std::vector<std::string> ceiling;
  // Of a run whose scores come from the user: shapes has one that stands for the score.
  std::optional<ExternalSpec> external;
  std::optional<double> target;   // the score, or the speed over the start, that ends the search
  int checkpoint_interval = 100;  // evaluations
  int islands = 0;                // of the search; 0: its own number
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
  std::string incumbent;  // the id it was compared with
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
Json to_json(const ExternalSpec& spec);
// Back again; all of these throw Json::exception.
RunMeta meta_of(const Json& json);
Record record_of(const Json& json);
Comparison comparison_of(const Json& json);
ExternalSpec external_spec_of(const Json& json);
Noise noise_of(const Json& json);
Interval interval_of(const Json& json);
double number_of(const Json& json);  // those that JSON lacks are "inf", "-inf", "nan"

struct Chain {
  int64_t events = 0;
  std::string head;  // the last hash; empty in runs of kOldSchema
};
Json to_json(const Chain& chain);

// All of a run, as it was at one moment.
struct Contents {
  std::vector<Record> records;         // in order of n
  std::map<std::string, Json> values;  // by name, the last of each; none is null
  Chain chain;
};

class Store {
 public:
  // A new run: the folder must not hold one. Refuses file systems that cannot carry SQLite's WAL
  // (NFS, SMB, FUSE, ...), with advice.
  static Status create(const std::string& folder, const RunMeta& meta,
                       std::unique_ptr<Store>* store);
  // An existing one. `exclusive`: to go on with it; refused while another process has it. A schema
  // of another version is refused by both numbers. The chain of hashes is verified, and the first
  // event that does not fit is named; also that it still has the head that an evidence.json beside
  // it knows.
  static Status open(const std::string& folder, bool exclusive, std::unique_ptr<Store>* store);
  static bool exists(const std::string& folder);  // whole or damaged
  ~Store();

  const RunMeta& meta() const { return meta_; }
  const std::string& folder() const { return folder_; }

  Status set_budget(double seconds, int64_t evaluations);  // 0: none; the rest of meta stays
  // Committed when it returns, with what led to it, which stands before it.
  using Events = std::vector<std::pair<std::string, Json>>;
  Status append(const Record& record, const Events& before = {});
  Status events(const std::vector<std::string>& names, Events* events) const;  // in their order
  Status records(std::vector<Record>* records) const;                          // in order of n
  Status contents(Contents* contents) const;
  const Chain& chain() const;  // when it was opened, and what was added since

  // One JSON value by name: "noise", "final", "decision". An older one stays in the list of events.
  Status put(const std::string& name, const Json& value);
  Status put(const std::vector<std::pair<std::string, Json>>& values);  // all of them, or none
  Json get(const std::string& name) const;                              // null: not there

 private:
  Store() = default;
  struct Database;
  std::unique_ptr<Database> database_;
  RunMeta meta_;
  std::string folder_;
};

}  // namespace attune::evolve
