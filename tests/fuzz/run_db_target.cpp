// Databases of runs: a damaged one is refused with a message, or what can be read of it is shown.
#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "evolve/process.hpp"
#include "evolve/report.hpp"
#include "tests/evolve/sample_run.hpp"
#include "tests/fuzz/bytes.hpp"
#include "tests/paths.hpp"

namespace attune::fuzz {
namespace {

namespace fs = std::filesystem;
using evolve::Json;
using evolve::Store;

constexpr double kToolSeconds = 15;

// A connection for damage that SQLite itself would not notice.
class Database {
 public:
  explicit Database(const std::string& path) {
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) throw std::runtime_error("no SQLite");
    execute("PRAGMA journal_mode=DELETE; PRAGMA synchronous=OFF");
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { sqlite3_close(db_); }

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

class RunDb : public Target {
 public:
  explicit RunDb(const std::string& folder) : folder_(folder + "/run"), path_(folder_ + "/run.db") {
    const std::string sample = folder + "/sample";
    evolve::write_sample_run(sample, space_, 24);
    whole_ = read_file(sample + "/run.db");
    std::unique_ptr<Store> store;
    const Status opened = Store::open(sample, false, &store);
    if (!opened.ok()) throw std::runtime_error(opened.message);
    const Status written = write_report(*store, space_);
    if (!written.ok()) throw std::runtime_error(written.message);
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
    if (!evolve::kSanitizer && dice.chance(0.05f)) run_tool(outcome);
  }

 private:
  // ---- damage ----

  std::string damage(Dice& dice) {
    if (dice.chance(0.01f)) return make_odd_file(dice, path_);
    std::string what;
    write_file(path_, whole_);
    if (dice.chance(0.6f)) {
      Database database(path_);
      for (int64_t n = dice.range(1, 3); n > 0; --n) what += change(dice, &database) + "; ";
    }
    if (dice.chance(0.5f)) {
      std::string bytes = read_file(path_);
      if (dice.chance(0.2f)) bytes.resize(size_t(dice.range(0, 32)) * 512);
      // The first page has what SQLite believes of the others.
      std::string first = bytes.substr(0, 4096), rest = bytes.substr(first.size());
      damage_bytes(dice, dice.chance(0.4f) ? &first : &rest);
      write_file(path_, first + rest);
      what += "bytes; ";
    }
    for (const char* beside : {"-wal", "-shm", "-journal"})
      if (dice.chance(0.05f)) {
        std::string bytes = whole_.substr(0, size_t(dice.range(0, 9000)));
        damage_bytes(dice, &bytes);
        write_file(path_ + beside, bytes);
        what += std::string(beside) + "; ";
      }
    return what;
  }

  std::string change(Dice& dice, Database* database) {
    const int64_t n = dice.below(25);
    const std::string name =
        dice.pick<const char*>({"run", "run", "noise", "final", "operators", "schema"});
    const std::string json = fmt::format("UPDATE record SET json=? WHERE n={}", n);
    const std::string meta = fmt::format("UPDATE meta SET value=? WHERE name='{}'", name);
    switch (dice.below(8)) {
      case 0:
      case 1:
      case 2: {
        std::string text = database->text(fmt::format("SELECT json FROM record WHERE n={}", n));
        damage_json(dice, &text);
        database->set(json, text);
        return fmt::format("record {}", n);
      }
      case 3:
      case 4:
      case 5: {
        std::string text =
            database->text(fmt::format("SELECT value FROM meta WHERE name='{}'", name));
        damage_json(dice, &text);
        database->set(meta, text);
        return name;
      }
      case 6:
        database->execute(fmt::format("UPDATE OR REPLACE record SET n={} WHERE n={}",
                                      dice.pick<int64_t>({-1, 0, 1000, INT64_MAX, INT64_MIN}), n));
        return fmt::format("another n for record {}", n);
      default: {
        const char* sql = dice.pick<const char*>(
            {"DELETE FROM record", "DELETE FROM record WHERE n<3", "DELETE FROM meta",
             "DROP TABLE record", "DROP TABLE meta", "PRAGMA user_version=0",
             "PRAGMA user_version=2", "PRAGMA application_id=1", "DROP INDEX record_id",
             "UPDATE record SET json=x'00ff00', id=7", "UPDATE record SET verdict='?'"});
        database->execute(sql);
        return sql;
      }
    }
  }

  static void damage_json(Dice& dice, std::string* text) {
    const int64_t kind = dice.below(10);
    if (kind == 0) {
      *text = deep_json(dice, dice.pick<int64_t>({10, 1000, 20'000, 200'000}));
    } else if (kind < 3) {
      damage_bytes(dice, text);
    } else {
      for (int64_t n = dice.range(1, 3); n > 0 && !text->empty(); --n) {
        // The value behind some colon or comma.
        const size_t at = text->find_first_of(":,[", size_t(dice.below(int64_t(text->size()))));
        if (at == std::string::npos) continue;
        const size_t end = std::min(text->find_first_of(",}]", at + 1), text->size());
        text->replace(at + 1, end - at - 1,
                      dice.chance(0.05f) ? deep_json(dice, 100'000) : odd_json(dice));
      }
    }
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
    outcome->call("best_info");
    best_info(evidence_of(*store), space_);
    ++outcome->compared;
  }

  // The tool itself: 0, or another status and a reason on stderr.
  void run_tool(Outcome* outcome) {
    const std::string errors = folder_ + "-stderr";
    const evolve::Fd file(open(errors.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    evolve::Spawn what;
    what.program = tool_path();
    what.arguments = {"report", folder_};
    what.environment = {"NO_COLOR=1"};
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
  std::string whole_;
  evolve::SampleSpace space_;
};

}  // namespace

std::unique_ptr<Target> make_run_db(const std::string& folder) {
  return std::make_unique<RunDb>(folder);
}

}  // namespace attune::fuzz
