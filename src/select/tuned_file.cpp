// Tuned tables as files: JSON, published whole or not at all.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "src/cpu/config.hpp"
#include "src/jit/cache.hpp"
#include "src/jit/sha256.hpp"
#include "src/json.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "attune tuned table";
constexpr int64_t kSchema = 1;

std::string failed(const char* what, const std::string& path, int error) {
  return fmt::format("cannot {} {}: {}", what, path, std::strerror(error));
}

std::string compact(const JsonValue& value) {
  JsonWriter w(JsonWriter::Layout::compact);
  w.value(value);
  return w.take();
}

// ---- rows ----

std::string id_of(const std::string& text) { return jit::hex(jit::sha256(text)).substr(0, 8); }

void write_place(const TunedRow& row, JsonWriter* w) {
  w->field("key", row.key);
  w->object("machine", [&] {
    w->field("arch", row.machine.arch);
    w->field("device", row.machine.device);
    w->field("threads", row.machine.threads);
  });
  w->object("sizes", [&] {
    w->field("heads", row.sizes.heads);
    w->field("seq_q", row.sizes.seq_q);
    w->field("seq_k", row.sizes.seq_k);
  });
}

// Precondition: its provenance is JSON.
std::string json_of(const TunedRow& row) {
  JsonWriter w(JsonWriter::Layout::compact);
  w.object([&] {
    write_place(row, &w);
    w.field("config", row.config);
    w.field("provenance", JsonValue(row.provenance));
  });
  return w.take();
}

// The fields of one object, with the first that is missing or of another type by name.
class Reader {
 public:
  explicit Reader(const JsonValue& object) : object_(object) {}

  void text(const char* name, std::string* value) {
    if (!object_.find(name).get(value)) complain(name);
  }
  template <class Int>
  void number(const char* name, int64_t least, Int* value) {
    int64_t n = 0;
    if (!object_.find(name).get(&n) || n < least || n > int64_t{std::numeric_limits<Int>::max()})
      return complain(name);
    *value = static_cast<Int>(n);
  }
  template <class Read>
  void object(const char* name, const Read& read) {
    const JsonValue found = object_.find(name);
    if (!found.is_object()) return complain(name);
    Reader inside(found);
    read(inside);
    if (problem.empty()) problem = inside.problem;
  }

  const JsonValue& value() const { return object_; }

  std::string problem;

 private:
  void complain(const char* name) {
    if (problem.empty()) problem = fmt::format("{} is missing or wrong", name);
  }

  JsonValue object_;
};

// Each config has one spelling: what was cut short or typed by hand is not taken for another.
std::string config_problem(const TunedRow& row) {
  if (row.is_cpu()) {
    if (cpu::parse_isa_config(row.config)) return "";
  } else if (Config config; parse_config(row.config, &config)) {
    return "";
  }
  return fmt::format("{} is not a config of this version", row.config);
}

TunedRow parse_row(const JsonValue& value) {
  TunedRow row;
  Reader reader(value);
  reader.text("key", &row.key);
  reader.object("machine", [&](Reader& machine) {
    machine.text("arch", &row.machine.arch);
    machine.text("device", &row.machine.device);
    machine.number("threads", 0, &row.machine.threads);
  });
  reader.object("sizes", [&](Reader& sizes) {
    sizes.number("heads", 1, &row.sizes.heads);
    sizes.number("seq_q", 1, &row.sizes.seq_q);
    sizes.number("seq_k", 1, &row.sizes.seq_k);
  });
  reader.text("config", &row.config);
  reader.object("provenance", [&](Reader& all) { row.provenance = all.value().text(); });
  if (reader.problem.empty()) {
    complete(&row);
  } else {
    row.id = id_of(compact(value));
    row.damage = reader.problem;
  }
  return row;
}

// ---- documents ----

// Empty, or why the text is no table that this version can read.
std::string parse_document(std::string_view text, const std::string& name, JsonValue* document) {
  if (const std::string why = why_not_json(text); !why.empty())
    return fmt::format("{} is damaged: {}", name, why);
  *document = JsonValue(text);
  std::string format;
  if (!document->find("format").get(&format) || format != kFormat)
    return fmt::format("{} is not a tuned table", name);
  const JsonValue schema = document->find("schema");
  int64_t number = 0;
  if (!schema.get(&number) || number != kSchema)
    return fmt::format("{} has schema {}; this version reads {}", name,
                       schema.exists() ? compact(schema) : "null", kSchema);
  const JsonValue rows = document->find("rows");
  if (!rows.is_array()) return fmt::format("{} is damaged: it has no rows", name);
  size_t count = 0;
  rows.each([&](const JsonValue&, const JsonValue&) { ++count; });
  if (count <= kMostTunedRows) return "";
  return fmt::format("{} has {} rows; a tuned table has at most {}", name, count, kMostTunedRows);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string too_large(const std::string& path) {
  return fmt::format("{} is too large for a tuned table: it has more than {} bytes", path,
                     kMostTunedBytes);
}

// Empty, or why not. A file that is not there has no text.
std::string read_text(const std::string& path, std::string* text) {
  text->clear();
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return errno == ENOENT ? "" : failed("read", path, errno);
  struct stat facts = {};
  if (fstat(file.get(), &facts) != 0) return failed("read", path, errno);
  if (!S_ISREG(facts.st_mode)) return fmt::format("{} is not a file", path);
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("read", path, errno);
    if (n == 0) return "";
    text->append(buffer, size_t(n));
    if (text->size() > kMostTunedBytes) return too_large(path);
  }
}

// 0, or errno.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(size_t(n));
  }
  return fsync(fd) == 0 || errno == EINVAL || errno == ENOSYS ? 0 : errno;
}

// Precondition: the lock is held, so the temporary name is ours alone.
std::string publish(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  int error = 0;
  {
    const Descriptor file(
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (file.get() < 0) return failed("write", temporary, errno);
    error = write_all(file.get(), text);
  }
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return "";
  unlink(temporary.c_str());
  return failed("write", path, error);
}

// The file itself, so that a rename replaces what a link points to and not the link.
std::string resolve(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string resolved = real;
  std::free(real);
  return resolved;
}

Status make_folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const int error = folder.empty() ? 0 : jit::make_cache_dir(folder.string());
  if (error != 0) return {ATTUNE_INTERNAL, failed("make the folder", folder.string(), error)};
  return {};
}

// The table with these rows; what else it says stays.
std::string document_of(const JsonValue& document, const std::vector<JsonValue>& rows) {
  JsonWriter w;
  w.object([&] {
    std::string name;
    document.each([&](const JsonValue& written, const JsonValue& value) {
      written.get(&name);
      w.name(name);
      if (name != "rows") return w.value(value);
      w.array([&] {
        for (const JsonValue& row : rows) w.value(row);
      });
    });
  });
  return w.take();
}

// Reads the table, lets `change` work on its rows, and publishes it; nobody else writes meanwhile.
template <class Change>
Status change_table(const std::string& name, const Change& change) {
  if (name.empty())
    return Status::invalid(
        "there is no tuned table: ATTUNE_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset");
  const std::string path = resolve(name);
  if (Status s = make_folder_of(path); !s.ok()) return s;
  const std::string lock_path = path + ".lock";
  const Descriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.get() < 0) return {ATTUNE_INTERNAL, failed("write", lock_path, errno)};
  while (flock(lock.get(), LOCK_EX) != 0)
    if (errno != EINTR) return {ATTUNE_INTERNAL, failed("lock", lock_path, errno)};

  std::string text;
  if (std::string why = read_text(path, &text); !why.empty()) return {ATTUNE_INTERNAL, why};
  if (text.empty())
    text = fmt::format(R"({{"format":"{}","schema":{},"rows":[]}})", kFormat, kSchema);
  JsonValue document;
  if (const std::string why = parse_document(text, path, &document); !why.empty())
    return Status::invalid(why + "; it is left as it is: move it away to start a new one");
  std::vector<JsonValue> rows;
  document.find("rows").each([&](const JsonValue&, const JsonValue& row) { rows.push_back(row); });
  if (Status s = change(&rows); !s.ok()) return s;
  const std::string changed = document_of(document, rows) + "\n";
  if (changed.size() > kMostTunedBytes || rows.size() > kMostTunedRows)
    return Status::invalid(
        fmt::format("{} would be too large for a tuned table: at most {} rows and {} bytes; remove "
                    "rows first",
                    path, kMostTunedRows, kMostTunedBytes));
  if (std::string why = publish(path, changed); !why.empty()) return {ATTUNE_INTERNAL, why};
  return {};
}

}  // namespace

std::string table_path() {
  const std::string dir = jit::cache_dir();
  return dir.empty() ? "" : (fs::path(dir) / "tuned.json").string();
}

void complete(TunedRow* row) {
  JsonWriter w(JsonWriter::Layout::compact);
  w.object([&] { write_place(*row, &w); });
  row->id = id_of(w.take());
  row->damage = config_problem(*row);
}

TunedRows parse_tuned(std::string_view text, const std::string& name) {
  JsonValue document;
  TunedRows table;
  table.problem = parse_document(text, name, &document);
  if (table.problem.empty())
    document.find("rows").each(
        [&](const JsonValue&, const JsonValue& row) { table.rows.push_back(parse_row(row)); });
  return table;
}

TunedRows read_tuned(const std::string& path) {
  std::string text;
  if (path.empty()) return {};
  if (std::string why = read_text(path, &text); !why.empty()) return {{}, why};
  return text.empty() ? TunedRows{} : parse_tuned(text, path);
}

Status add_tuned_row(const std::string& path, const TunedRow& row) {
  constexpr int kRowDepth = kJsonDepth - 2;  // within the document and its rows
  if (!why_not_json(row.provenance, kRowDepth - 1).empty() ||
      !JsonValue(row.provenance).is_object())
    return Status::invalid("not a row to add: provenance is missing or wrong");
  const std::string written = json_of(row);
  const TunedRow as_read = parse_row(JsonValue(written));
  if (!as_read.damage.empty()) return Status::invalid("not a row to add: " + as_read.damage);
  return change_table(path, [&](std::vector<JsonValue>* rows) -> Status {
    for (JsonValue& other : *rows)
      if (parse_row(other).id == as_read.id) {
        other = JsonValue(written);
        return {};
      }
    rows->push_back(JsonValue(written));
    return {};
  });
}

Status remove_tuned_rows(const std::string& path, const std::vector<std::string>& ids) {
  return change_table(path, [&](std::vector<JsonValue>* rows) -> Status {
    std::vector<std::string> missing = ids;
    std::erase_if(*rows, [&](const JsonValue& row) {
      const std::string id = parse_row(row).id;
      std::erase(missing, id);
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    });
    if (!missing.empty()) return Status::invalid(fmt::format("no row {} in {}", missing[0], path));
    return {};
  });
}

}  // namespace attune
