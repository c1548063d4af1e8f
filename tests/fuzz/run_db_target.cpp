// Databases of runs: a damaged one is refused with a message, or what can be read of it is shown.
#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "evolve/report/report.hpp"
#include "evolve/worker/process.hpp"
#include "tests/evolve/sample_run.hpp"
#include "tests/fuzz/bytes.hpp"
#include "tests/paths.hpp"

namespace attune::fuzz {
namespace {

namespace fs = std::filesystem;
using evolve::Json;
using evolve::Store;

constexpr double kToolSeconds = 15;

// The records of the sample run, by their numbers in a longer one: the start, a better one, one
// that failed, and a better one again.
constexpr int64_t kKinds[] = {0, 1, 5, 7};
constexpr int64_t kRecords = std::size(kKinds);
constexpr size_t kSamples = 4;  // of a shape: what reads one reads any number

// A database in memory, for damage that SQLite itself would not notice.
class Database {
 public:
  explicit Database(const std::string& bytes) {
    const auto size = sqlite3_int64(bytes.size());
    auto* copy = static_cast<unsigned char*>(sqlite3_malloc64(bytes.size()));
    if (copy != nullptr) bytes.copy(reinterpret_cast<char*>(copy), bytes.size());
    constexpr unsigned kOurs = SQLITE_DESERIALIZE_FREEONCLOSE | SQLITE_DESERIALIZE_RESIZEABLE;
    if (copy == nullptr || sqlite3_open(":memory:", &db_) != SQLITE_OK ||
        sqlite3_deserialize(db_, "main", copy, size, size, kOurs) != SQLITE_OK)
      throw std::runtime_error("no SQLite");
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { sqlite3_close(db_); }

  // What its file would hold.
  std::string bytes() {
    sqlite3_int64 size = 0;
    const unsigned char* all = sqlite3_serialize(db_, "main", &size, SQLITE_SERIALIZE_NOCOPY);
    if (all == nullptr) throw std::runtime_error("SQLite gives no bytes");
    return {reinterpret_cast<const char*>(all), size_t(size)};
  }
  void seal() { evolve::reseal(db_); }
  void execute(const std::string& sql) {
    sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  }
  std::string text(const std::string& sql) {
    std::string answer;
    sqlite3_exec(
        db_, sql.c_str(),
        [](void* to, int, char** values, char**) {
          *static_cast<std::string*>(to) = values[0] != nullptr ? values[0] : "";
          return 0;
        },
        &answer, nullptr);
    return answer;
  }
  void set(const std::string& sql, const std::string& value) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) return;
    sqlite3_bind_text64(statement, 1, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
    sqlite3_step(statement);
    sqlite3_finalize(statement);
  }

 private:
  sqlite3* db_ = nullptr;
};

void need(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

// A run as small as one can be, since most of a case is reading it: with all its parts and two
// shapes, or of one shape and interrupted before its end.
void write_run(const std::string& folder, const evolve::Space& space, bool whole) {
  std::unique_ptr<Store> store;
  evolve::RunMeta meta = evolve::sample_meta();
  if (!whole) meta.shapes.resize(1);
  need(Store::create(folder, meta, &store));
  std::vector<evolve::Record> records;
  for (const int64_t kind : kKinds) {
    evolve::Record record = evolve::sample_record(space, kind);
    record.proposal.n = int64_t(records.size());
    record.proposal.parent = record.proposal.n - 1;
    std::vector<evolve::ShapeSamples>& shapes = record.evaluation.shapes;
    shapes.resize(std::min(shapes.size(), meta.shapes.size()));
    for (evolve::ShapeSamples& shape : shapes) {
      shape.candidate.resize(kSamples);
      shape.incumbent.resize(kSamples);
    }
    need(store->append(record));
    records.push_back(record);
  }
  need(store->put("noise", to_json(evolve::Noise{{0.99, 1.001, 1.012}, 0.012, 0.004})));
  if (!whole) return;
  evolve::Comparison final = evolve::sample_final(records[0], records[1], records[3]);
  for (auto& shapes : final.seconds)
    for (auto& rounds : shapes) rounds.resize(kSamples);
  need(store->put("final", to_json(final)));
  need(store->put(
      "operators",
      Json::array({{{"name", "algorithm.climb"}, {"tried", 3}, {"valid", 2}, {"improved", 1}}})));
}

// The file of a run whose last process has ended.
std::string bytes_of_run(const std::string& folder) {
  std::string bytes = read_file(folder + "/run.db");
  bytes.at(18) = bytes.at(19) = 1;  // no write-ahead log, which memory cannot have
  return bytes;
}

class RunDb : public Target {
 public:
  explicit RunDb(const std::string& folder) : folder_(folder + "/run"), path_(folder_ + "/run.db") {
    for (const bool whole : {false, true}) {
      const std::string sample = folder + (whole ? "/whole" : "/interrupted");
      write_run(sample, space_, whole);
      (whole ? whole_ : interrupted_) = bytes_of_run(sample);
      std::unique_ptr<Store> store;
      need(Store::open(sample, false, &store));
      need(write_report(*store, space_));
      if (!fs::exists(sample + "/best/best_program_info.json"))
        throw std::runtime_error("the sample run has no best");
    }
  }

  void run(uint64_t seed, Outcome* outcome) override {
    Dice dice(seed);
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    outcome->note(damage(dice));
    try {
      read(dice, outcome);
    } catch (const std::bad_alloc&) {  // the file is small
      outcome->fail("out of memory");
    } catch (const std::exception& e) {  // the tool prints it and ends
      if (e.what()[0] == '\0') outcome->fail("an exception without a message");
    }
    if (!evolve::kSanitizer && dice.chance(0.01f)) run_tool(outcome);
  }

 private:
  // ---- damage ----

  std::string damage(Dice& dice) {
    if (dice.chance(0.01f)) return make_odd_file(dice, path_);
    const bool whole = dice.chance(0.5f);
    std::string what = whole ? "whole; " : "interrupted; ", bytes = whole ? whole_ : interrupted_;
    if (dice.chance(0.6f)) {
      Database database(bytes);
      for (int64_t n = dice.range(1, 3); n > 0; --n) what += change(dice, &database) + "; ";
      // What is behind the chain of hashes is only reached when that is right again.
      if (dice.chance(0.8f)) {
        database.seal();
        what += "sealed; ";
      }
      bytes = database.bytes();
    }
    if (dice.chance(0.5f)) {
      if (dice.chance(0.2f)) bytes.resize(size_t(dice.range(0, 32)) * 512);
      // The first page has what SQLite believes of the others.
      std::string first = bytes.substr(0, 4096), rest = bytes.substr(first.size());
      damage_bytes(dice, dice.chance(0.4f) ? &first : &rest);
      bytes = first + rest;
      what += "bytes; ";
    }
    write_file(path_, bytes);
    for (const char* beside : {"-wal", "-shm", "-journal"})
      if (dice.chance(0.05f)) {
        std::string other = whole_.substr(0, size_t(dice.range(0, 9000)));
        damage_bytes(dice, &other);
        write_file(path_ + beside, other);
        what += std::string(beside) + "; ";
      }
    return what;
  }

  std::string change(Dice& dice, Database* database) {
    const int64_t n = dice.below(kRecords + 1);
    const std::string name =
        dice.pick<const char*>({"run", "run", "noise", "final", "operators", "schema"});
    const std::string json = fmt::format("UPDATE event SET json=? WHERE n={}", n);
    const std::string meta = fmt::format("UPDATE event SET json=? WHERE name='{}'", name);
    switch (dice.below(8)) {
      case 0:
      case 1:
      case 2: {
        std::string text = database->text(fmt::format("SELECT json FROM record WHERE n={}", n));
        const std::string what = damage_json(dice, &text);
        database->set(json, text);
        return fmt::format("record {}: {}", n, what);
      }
      case 3:
      case 4:
      case 5: {
        std::string text =
            database->text(fmt::format("SELECT value FROM meta WHERE name='{}'", name));
        const std::string what = damage_json(dice, &text);
        database->set(meta, text);
        return fmt::format("{}: {}", name, what);
      }
      case 6:
        database->execute(fmt::format("UPDATE OR REPLACE event SET n={} WHERE n={}",
                                      dice.pick<int64_t>({-1, 0, 1000, INT64_MAX, INT64_MIN}), n));
        return fmt::format("another n for record {}", n);
      default: {
        const char* sql = dice.pick<const char*>(
            {"DELETE FROM event", "DELETE FROM event WHERE n<3",
             "DELETE FROM event WHERE n IS NULL", "DROP TABLE event", "DROP VIEW meta",
             "PRAGMA user_version=0", "PRAGMA user_version=1", "PRAGMA user_version=3",
             "PRAGMA application_id=1", "DROP INDEX event_name",
             "UPDATE event SET json=x'00ff00', name=7", "UPDATE event SET hash='?'"});
        database->execute(sql);
        return sql;
      }
    }
  }

  // Says what it did.
  static std::string damage_json(Dice& dice, std::string* text) {
    const int64_t kind = dice.below(10);
    if (kind == 0) {
      *text = deep_json(dice, dice.pick<int64_t>({10, 1000, 20'000, 200'000}));
      return fmt::format("{} bytes of deep JSON", text->size());
    }
    if (kind < 3) {
      damage_bytes(dice, text);
      return "bytes";
    }
    std::string what = "values";
    for (int64_t n = dice.range(1, 3); n > 0 && !text->empty(); --n) {
      // The value behind some colon or comma.
      const size_t at = text->find_first_of(":,[", size_t(dice.below(int64_t(text->size()))));
      if (at == std::string::npos) continue;
      const size_t end = std::min(text->find_first_of(",}]", at + 1), text->size());
      const std::string value = dice.chance(0.05f) ? deep_json(dice, 100'000) : odd_json(dice);
      const size_t before = std::min<size_t>(at, 12);
      what += fmt::format(" {}{}", text->substr(at - before, before + 1), value.substr(0, 20));
      text->replace(at + 1, end - at - 1, value);
    }
    return what;
  }

  // ---- what reads it ----

  static bool said(const char* function, const Status& status, Outcome* outcome) {
    if (status.ok()) return true;
    if (status.message.empty()) outcome->fail(fmt::format("{}: no message", function));
    return false;
  }

  void read(Dice& dice, Outcome* outcome) {
    std::unique_ptr<Store> store;
    outcome->call("Store::open");
    if (!said("Store::open", Store::open(folder_, dice.chance(0.3f), &store), outcome)) return;
    ++outcome->accepted;
    std::vector<evolve::Record> records;
    outcome->call("Store::records");
    try {
      said("Store::records", store->records(&records), outcome);
    } catch (const Json::exception&) {  // as it says
    }
    outcome->call("write_report");
    if (!said("write_report", write_report(*store, space_), outcome)) return;
    ++outcome->compared;
    if (!dice.chance(0.1f)) return;  // write_report has done the same
    outcome->call("best_info");
    best_info(evidence_of(*store), space_);
  }

  // The tool itself: 0, or another status and a reason on stderr.
  void run_tool(Outcome* outcome) {
    const std::string errors = folder_ + "-stderr";
    const evolve::Fd file(open(errors.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    evolve::Spawn what;
    what.program = tool_path();
    what.arguments = {"report", folder_};
    what.environment = {"NO_COLOR=1", "PATH=" + folder_};  // where it finds no compiler to ask
    what.descriptors = {-1, -1, file.get()};
    what.limits = {{RLIMIT_CORE, 0}};
    pid_t pid = -1;
    outcome->call("attune report");
    if (!said("attune report", evolve::spawn(what, &pid), outcome)) return;
    const bool ended = evolve::ended_by(pid, evolve::monotonic_seconds() + kToolSeconds);
    const int status = evolve::kill_group(pid);
    if (!ended) return outcome->fail("attune report: no end");
    if (WIFSIGNALED(status))
      return outcome->fail(
          fmt::format("attune report crashed: {}", evolve::signal_name(WTERMSIG(status))));
    if (WEXITSTATUS(status) > 2)
      return outcome->fail(fmt::format("attune report: exit status {}", WEXITSTATUS(status)));
    if (WEXITSTATUS(status) != 0 && read_file(errors).empty())
      outcome->fail("attune report failed without a message");
  }

  const std::string folder_, path_;
  std::string whole_, interrupted_;
  evolve::SampleSpace space_;
};

}  // namespace

std::unique_ptr<Target> make_run_db(const std::string& folder) {
  return std::make_unique<RunDb>(folder);
}

}  // namespace attune::fuzz
