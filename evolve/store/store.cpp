#include "evolve/store/store.hpp"

#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <mutex>

#include "evolve/store/files.hpp"
#include "src/api/tensor_check.hpp"
#include "src/jit/sha256.hpp"

namespace attune::evolve {
namespace {

constexpr int kApplication = 0x41545445;  // "ATTE", in the file's header
constexpr int kBusyMilliseconds = 10'000;

// The views are for people.
constexpr const char* kTables = R"(
  CREATE TABLE event(seq INTEGER PRIMARY KEY, name TEXT NOT NULL, n INTEGER UNIQUE,
                     json TEXT NOT NULL, hash TEXT NOT NULL);
  CREATE INDEX event_name ON event(name, seq);
  CREATE VIEW record AS
    SELECT n, json_extract(json, '$.candidate.id') AS id,
           json_extract(json, '$.evaluation.verdict') AS verdict,
           json_extract(json, '$.evaluation.stage') AS stage,
           json_extract(json, '$.proposal.op') AS op,
           json_extract(json, '$.outcome.fitness') AS fitness,
           json_extract(json, '$.at') AS at, json, hash
    FROM event WHERE name = 'record';
  CREATE VIEW meta AS
    SELECT name, json AS value FROM event AS e
    WHERE name <> 'record' AND seq = (SELECT max(seq) FROM event WHERE name = e.name);)";
constexpr const char* kRecord = "record";
constexpr const char* kExchangeEvent = "exchange";  // large, and read by events() alone

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status failure(sqlite3* db, int code, const std::string& path) {
  const char* reason = db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_FULL:
      return Status::invalid(fmt::format(
          "{}: the disk is full. What was committed is safe: make room and resume", path));
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return Status::invalid(fmt::format(
          "{} cannot be opened or written: {}; is the folder yours to write in?", path, reason));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Status::invalid(
          fmt::format("{} is damaged ({}). `sqlite3 {} .recover` shows what can be saved of it",
                      path, reason, path));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Status::invalid(fmt::format("{} is locked by another program; waited {} s for it",
                                         path, kBusyMilliseconds / 1000));
    case SQLITE_NOMEM:
      return {ATTUNE_OUT_OF_MEMORY, fmt::format("{}: not enough memory", path)};
    case SQLITE_IOERR: {
      const int error = db != nullptr ? sqlite3_system_errno(db) : 0;
      return Status::invalid(fmt::format("{}: {}{}{}. What was committed is safe", path, reason,
                                         error != 0 ? ": " : "",
                                         error != 0 ? std::strerror(error) : ""));
    }
    default:
      return {ATTUNE_INTERNAL, fmt::format("{}: {}", path, reason)};
  }
}

}  // namespace

// The connection, and the statements made with it.
struct Store::Database {
  std::unique_ptr<FolderLock> lock;  // of a writer
  std::string path;
  sqlite3* db = nullptr;
  int64_t next = 0;  // the n of the next record
  int64_t schema = kSchema;
  Chain chain;
  mutable std::mutex mutex;

  ~Database() { sqlite3_close(db); }

  Status fail(int code) const { return failure(db, code, path); }

  Status connect(int flags, bool immutable = false) {
    // A path may have any letters; in a URI some of them mean something.
    std::string uri = "file:";
    for (const char c : path)
      uri += std::strchr("%?#", c) != nullptr ? fmt::format("%{:02X}", int(c)) : std::string(1, c);
    if (immutable) uri += "?immutable=1";
    const int code = sqlite3_open_v2(uri.c_str(), &db, flags | SQLITE_OPEN_URI, nullptr);
    if (code != SQLITE_OK) return fail(code);
    sqlite3_extended_result_codes(db, 1);
    sqlite3_busy_timeout(db, kBusyMilliseconds);
    return {};
  }

  Status execute(const char* sql) {
    const int code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? Status{} : fail(code);
  }

  // bind(statement), then row(statement) for each row.
  template <class Bind, class Row>
  Status query(const char* sql, const Bind& bind, const Row& row) const {
    sqlite3_stmt* statement = nullptr;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
    if (code != SQLITE_OK) return fail(code);
    bind(statement);
    Status status;
    while (status.ok() && (code = sqlite3_step(statement)) == SQLITE_ROW) status = row(statement);
    if (status.ok() && code != SQLITE_DONE) status = fail(code);
    sqlite3_finalize(statement);
    return status;
  }

  template <class Bind>
  Status change(const char* sql, const Bind& bind) {
    return query(sql, bind, [](sqlite3_stmt*) { return Status{}; });
  }

  Status number(const char* sql, int64_t* value) const {
    return query(
        sql, [](sqlite3_stmt*) {},
        [&](sqlite3_stmt* s) {
          *value = sqlite3_column_int64(s, 0);
          return Status{};
        });
  }
  Status word(const char* sql, std::string* value) const;

  Status make_durable();
  Status fill(const RunMeta& meta);
  Status check_schema();
  Status check_whole() const;

  struct Event {
    std::string name, json, hash;
    int64_t n;  // of a record
  };
  // All events of one moment; fails at the first whose hash does not follow from those before it.
  template <class Each>
  Status each_event(const Each& each, Chain* end) const;
  Status check_known_head(const std::string& folder) const;
  Status insert(const std::vector<Event>& events, Chain* end);
  Status add(const std::vector<Event>& events);  // in one transaction
  static std::string hash_after(const std::string& before, const std::string& name,
                                const std::string& json);
};

namespace {

std::string column_text(sqlite3_stmt* s, int column) {
  const unsigned char* text = sqlite3_column_text(s, column);
  if (text == nullptr) return "";
  return {reinterpret_cast<const char*>(text), size_t(sqlite3_column_bytes(s, column))};
}

void bind_text(sqlite3_stmt* s, int at, const std::string& text) {
  sqlite3_bind_text64(s, at, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
}

}  // namespace

Status Store::Database::word(const char* sql, std::string* value) const {
  return query(
      sql, [](sqlite3_stmt*) {},
      [&](sqlite3_stmt* s) {
        *value = column_text(s, 0);
        return Status{};
      });
}

// One fsync a commit: a record that append() acknowledged survives a power cut too.
Status Store::Database::make_durable() {
  std::string mode;
  ATTUNE_TRY(word("PRAGMA journal_mode=WAL", &mode));
  if (mode != "wal")
    return Status::unsupported(fmt::format(
        "{}: SQLite's write-ahead log does not work here (it stays in '{}' mode); choose a folder "
        "on a local disk",
        path, mode));
  return execute("PRAGMA synchronous=FULL");
}

std::string Store::Database::hash_after(const std::string& before, const std::string& name,
                                        const std::string& json) {
  return jit::hex(jit::sha256(before + "\n" + name + "\n" + json));
}

// All of a new database in one transaction: there is a run, or there is none.
Status Store::Database::fill(const RunMeta& meta) {
  ATTUNE_TRY(execute("BEGIN IMMEDIATE"));
  ATTUNE_TRY(execute(kTables));
  ATTUNE_TRY(
      execute(fmt::format("PRAGMA application_id={}; PRAGMA user_version={}", kApplication, kSchema)
                  .c_str()));
  ATTUNE_TRY(insert({{"schema", text_of(kSchema), "", -1}, {"run", text_of(to_json(meta)), "", -1}},
                    &chain));
  return execute("COMMIT");
}

Status Store::Database::insert(const std::vector<Event>& events, Chain* end) {
  for (const Event& e : events) {
    std::string hash = hash_after(end->head, e.name, e.json);
    ATTUNE_TRY(change("INSERT INTO event VALUES(?,?,?,?,?)", [&](sqlite3_stmt* s) {
      sqlite3_bind_int64(s, 1, end->events);
      bind_text(s, 2, e.name);
      if (e.n >= 0) sqlite3_bind_int64(s, 3, e.n);  // else NULL
      bind_text(s, 4, e.json);
      bind_text(s, 5, hash);
    }));
    end->head = std::move(hash);
    ++end->events;
  }
  return {};
}

Status Store::Database::add(const std::vector<Event>& events) {
  Chain after = chain;
  if (events.size() == 1) {  // one statement outside BEGIN and COMMIT is one transaction
    ATTUNE_TRY(insert(events, &after));
  } else {
    ATTUNE_TRY(execute("BEGIN IMMEDIATE"));
    Status s = insert(events, &after);
    if (s.ok()) s = execute("COMMIT");
    if (!s.ok()) {
      (void)execute("ROLLBACK");
      return s;
    }
  }
  chain = std::move(after);
  return {};
}

template <class Each>
Status Store::Database::each_event(const Each& each, Chain* end) const {
  *end = {};
  return query(
      "SELECT name, ifnull(n, -1), json, hash FROM event ORDER BY seq", [](sqlite3_stmt*) {},
      [&](sqlite3_stmt* s) {
        const Event e{column_text(s, 0), column_text(s, 2), column_text(s, 3),
                      sqlite3_column_int64(s, 1)};
        if (e.hash != hash_after(end->head, e.name, e.json))
          return Status::invalid(fmt::format(
              "{}: {} (event {}) does not fit the chain of hashes: it was changed, or what stood "
              "before it was changed or removed",
              path, e.name == kRecord ? fmt::format("record {}", e.n) : "'" + e.name + "'",
              end->events));
        end->head = e.hash;
        ++end->events;
        return each(e);
      });
}

// The end of a chain can be cut off without a trace in it; but a report that was made of the whole
// knows its head. A report of a run that went on since knows an earlier one.
Status Store::Database::check_known_head(const std::string& folder) const {
  std::ifstream file(folder + "/evidence.json");
  constexpr std::string_view kStart = "\"chain\": ";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kStart)) continue;
    line.erase(0, kStart.size());
    if (line.ends_with(',')) line.pop_back();
    int64_t events = 0;
    std::string head, there;
    try {
      const Json known = parse_json(line);
      known.at("events").get_to(events);
      known.at("head").get_to(head);
    } catch (const Json::exception&) {
      return {};  // it was made by somebody else
    }
    ATTUNE_TRY(query(
        "SELECT hash FROM event ORDER BY seq LIMIT 1 OFFSET ?",
        [&](sqlite3_stmt* s) { sqlite3_bind_int64(s, 1, events - 1); },
        [&](sqlite3_stmt* s) {
          there = column_text(s, 0);
          return Status{};
        }));
    if (there == head) return {};
    return Status::invalid(fmt::format(
        "{} has {} events; evidence.json beside it was made of {}, and {}: its end was cut off, or "
        "the two are not of one run (remove evidence.json to do without it)",
        path, chain.events, events,
        there.empty() ? "these are fewer" : "the last of those has another hash"));
  }
  return {};
}

Status Store::Database::check_schema() {
  int64_t application = 0, tables = 0;
  ATTUNE_TRY(number("PRAGMA application_id", &application));
  ATTUNE_TRY(number("PRAGMA user_version", &schema));
  ATTUNE_TRY(number("SELECT count(*) FROM sqlite_master", &tables));
  if (tables == 0)
    return Status::invalid(fmt::format("{} is empty: its run never began; start a new one", path));
  if (application != kApplication)
    return Status::invalid(fmt::format("{} is a database, but no run of attune", path));
  if (schema == kSchema) return {};
  if (schema == kOldSchema) {
    if (lock == nullptr) return {};
    return Status::unsupported(fmt::format(
        "{} has schema {}, without a chain of hashes: it can be replayed and reported, but this "
        "attune goes on with schema {} alone; start a new run",
        path, schema, kSchema));
  }
  return Status::unsupported(fmt::format(
      "{} has schema {}, and this attune reads schema {}: use the {} attune that made it, or start "
      "a new run",
      path, schema, kSchema, schema > kSchema ? "newer" : "older"));
}

// Every page, before more is added to a database that may have been through a crash.
Status Store::Database::check_whole() const {
  std::string verdict;
  ATTUNE_TRY(word("PRAGMA quick_check(1)", &verdict));
  if (verdict == "ok") return {};
  return Status::invalid(
      fmt::format("{} is damaged ({}). `sqlite3 {} .recover` shows what can be saved of it", path,
                  verdict, path));
}

Store::~Store() = default;

Status Store::create(const std::string& folder, const RunMeta& meta,
                     std::unique_ptr<Store>* store) {
  ATTUNE_TRY(make_folder(folder));
  ATTUNE_TRY(check_file_system(folder));
  std::unique_ptr<Store> fresh(new Store);
  fresh->folder_ = folder;
  fresh->meta_ = meta;
  fresh->database_ = std::make_unique<Database>();
  Database& d = *fresh->database_;
  d.path = folder + "/run.db";
  ATTUNE_TRY(FolderLock::take(folder, &d.lock));
  ATTUNE_TRY(d.connect(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  int64_t tables = 0;  // a creation that was killed leaves an empty file
  ATTUNE_TRY(d.number("SELECT count(*) FROM sqlite_master", &tables));
  if (tables != 0)
    return Status::invalid(
        fmt::format("{} already holds a run: go on with it (--resume {}), or choose another folder",
                    folder, folder));
  ATTUNE_TRY(d.make_durable());
  ATTUNE_TRY(d.fill(meta));
  unlink((folder + "/evidence.json").c_str());  // of a run that is gone
  *store = std::move(fresh);
  return {};
}

bool Store::exists(const std::string& folder) {
  return access((folder + "/run.db").c_str(), F_OK) == 0;
}

Status Store::open(const std::string& folder, bool exclusive, std::unique_ptr<Store>* store) {
  std::unique_ptr<Store> opened(new Store);
  opened->folder_ = folder;
  opened->database_ = std::make_unique<Database>();
  Database& d = *opened->database_;
  d.path = folder + "/run.db";
  if (!exists(folder))
    return Status::invalid(fmt::format("{} holds no run: there is no run.db in it", folder));
  if (exclusive) {
    ATTUNE_TRY(check_file_system(folder));
    ATTUNE_TRY(FolderLock::take(folder, &d.lock));
    ATTUNE_TRY(d.connect(SQLITE_OPEN_READWRITE));
  } else if (access(folder.c_str(), W_OK) == 0 && access(d.path.c_str(), W_OK) == 0) {
    // A reader of a WAL shares its index with the writer: it needs write access, and changes no
    // data.
    ATTUNE_TRY(d.connect(SQLITE_OPEN_READWRITE));
    ATTUNE_TRY(d.execute("PRAGMA query_only=1"));
  } else {
    // In a folder that is read-only, a database without a log is as it will stay.
    const bool log = access((d.path + "-wal").c_str(), F_OK) == 0;
    ATTUNE_TRY(d.connect(SQLITE_OPEN_READONLY, !log));
  }
  ATTUNE_TRY(d.check_schema());
  if (exclusive) {
    ATTUNE_TRY(d.make_durable());
    ATTUNE_TRY(d.check_whole());
  }
  if (d.schema == kSchema) {
    ATTUNE_TRY(d.each_event([](const Database::Event&) { return Status{}; }, &d.chain));
    ATTUNE_TRY(d.check_known_head(folder));
  }
  ATTUNE_TRY(d.number("SELECT ifnull(max(n) + 1, 0) FROM record", &d.next));
  try {
    opened->meta_ = meta_of(opened->get("run"));
  } catch (const Json::exception& error) {
    return Status::invalid(
        fmt::format("{}: what the run was asked for cannot be read ({})", d.path, error.what()));
  }
  *store = std::move(opened);
  return {};
}

Status Store::set_budget(double seconds, int64_t evaluations) {
  if (seconds == meta_.budget_seconds && evaluations == meta_.budget_evaluations) return {};
  RunMeta meta = meta_;
  meta.budget_seconds = seconds;
  meta.budget_evaluations = evaluations;
  ATTUNE_TRY(put("run", to_json(meta)));
  meta_ = std::move(meta);
  return {};
}

Status Store::append(const Record& record, const Events& before) {
  Database& d = *database_;
  const std::lock_guard hold(d.mutex);
  const Proposal& p = record.proposal;
  if (p.n != d.next)
    return {ATTUNE_INTERNAL,
            fmt::format("{}: record {} was offered where {} comes next", d.path, p.n, d.next)};
  std::vector<Database::Event> events;
  for (const auto& [name, value] : before) events.push_back({name, text_of(value), "", -1});
  events.push_back({kRecord, text_of(to_json(record)), "", p.n});
  ATTUNE_TRY(d.add(events));
  ++d.next;
  return {};
}

const Chain& Store::chain() const { return database_->chain; }

Status Store::records(std::vector<Record>* records) const {
  Contents all;
  ATTUNE_TRY(contents(&all));
  *records = std::move(all.records);
  return {};
}

Status Store::contents(Contents* contents) const {
  const Database& d = *database_;
  const std::lock_guard hold(d.mutex);
  Contents all;
  const auto add_record = [&](int64_t n, const std::string& json) {
    try {
      all.records.push_back(record_of(parse_json(json)));
    } catch (const Json::exception& error) {
      return Status::invalid(
          fmt::format("{}: record {} cannot be read ({})", d.path, n, error.what()));
    }
    const int64_t place = int64_t(all.records.size()) - 1;
    if (n == place && all.records.back().proposal.n == n) return Status{};
    return Status::invalid(fmt::format("{}: record {} stands in place {}", d.path, n, place));
  };
  const auto set_value = [&](const std::string& name, const std::string& json) {
    try {
      all.values[name] = parse_json(json);
    } catch (const Json::exception&) {
      all.values[name] = nullptr;
    }
    return Status{};
  };
  if (d.schema == kSchema) {
    ATTUNE_TRY(d.each_event(
        [&](const Database::Event& e) {
          if (e.name == kRecord) return add_record(e.n, e.json);
          return e.name == kExchangeEvent ? Status{} : set_value(e.name, e.json);
        },
        &all.chain));
  } else {
    const auto nothing = [](sqlite3_stmt*) {};
    ATTUNE_TRY(d.query("SELECT n, json FROM record ORDER BY n", nothing, [&](sqlite3_stmt* s) {
      return add_record(sqlite3_column_int64(s, 0), column_text(s, 1));
    }));
    ATTUNE_TRY(d.query("SELECT name, value FROM meta", nothing, [&](sqlite3_stmt* s) {
      return set_value(column_text(s, 0), column_text(s, 1));
    }));
  }
  std::erase_if(all.values, [](const auto& entry) { return entry.second.is_null(); });
  *contents = std::move(all);
  return {};
}

Status Store::events(const std::vector<std::string>& names, Events* events) const {
  const Database& d = *database_;
  const std::lock_guard hold(d.mutex);
  events->clear();
  if (d.schema != kSchema) return {};
  Chain end;
  return d.each_event(
      [&](const Database::Event& e) {
        if (std::count(names.begin(), names.end(), e.name) == 0) return Status{};
        try {
          events->emplace_back(e.name, parse_json(e.json));
        } catch (const Json::exception& error) {
          return Status::invalid(
              fmt::format("{}: '{}' cannot be read ({})", d.path, e.name, error.what()));
        }
        return Status{};
      },
      &end);
}

Status Store::put(const std::string& name, const Json& value) { return put({{name, value}}); }

Status Store::put(const std::vector<std::pair<std::string, Json>>& values) {
  const std::lock_guard hold(database_->mutex);
  std::vector<Database::Event> events;
  for (const auto& [name, value] : values) events.push_back({name, text_of(value), "", -1});
  return database_->add(events);
}

Json Store::get(const std::string& name) const {
  const std::lock_guard hold(database_->mutex);
  Json value;
  const Status status = database_->query(
      database_->schema == kSchema ? "SELECT json FROM event WHERE name=? ORDER BY seq DESC LIMIT 1"
                                   : "SELECT value FROM meta WHERE name=?",
      [&](sqlite3_stmt* s) { bind_text(s, 1, name); },
      [&](sqlite3_stmt* s) {
        try {
          value = parse_json(column_text(s, 0));
        } catch (const Json::exception&) {
          value = nullptr;
        }
        return Status{};
      });
  return status.ok() ? value : Json();
}

}  // namespace attune::evolve
