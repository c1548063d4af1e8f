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

#include "src/cpu/config.hpp"
#include "src/jit/cache.hpp"
#include "src/jit/sha256.hpp"
#include "src/select/cuda_select.hpp"
#include "src/select/tuned.hpp"

namespace attune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "attune tuned table";
constexpr int kSchema = 1;
constexpr off_t kLargest = off_t{64} << 20;

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string failed(const char* what, const std::string& path, int error) {
  return fmt::format("cannot {} {}: {}", what, path, std::strerror(error));
}

// ---- rows ----

std::string id_of(const std::string& text) { return jit::hex(jit::sha256(text)).substr(0, 8); }

Json place_of(const TunedRow& row) {
  return {{"key", row.key},
          {"machine",
           {{"arch", row.machine.arch},
            {"device", row.machine.device},
            {"threads", row.machine.threads}}},
          {"sizes",
           {{"heads", row.sizes.heads}, {"seq_q", row.sizes.seq_q}, {"seq_k", row.sizes.seq_k}}}};
}

Json json_of(const TunedRow& row) {
  Json json = place_of(row);
  json["config"] = row.config;
  json["provenance"] = row.provenance;
  return json;
}

// The fields of one object, with the first that is missing or of another type by name.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  void text(const char* name, std::string* value) {
    if (const Json* j = field(name, &Json::is_string)) *value = j->get<std::string>();
  }
  template <class Int>
  void number(const char* name, int64_t least, Int* value) {
    const Json* j = field(name, &Json::is_number_integer);
    if (j == nullptr) return;
    const int64_t n = j->get<int64_t>();
    if (n < least || n > int64_t{std::numeric_limits<Int>::max()}) return complain(name);
    *value = static_cast<Int>(n);
  }
  template <class Read>
  void object(const char* name, const Read& read) {
    const Json* j = field(name, &Json::is_object);
    if (j == nullptr) return;
    Reader inside(*j);
    read(inside);
    if (problem.empty()) problem = inside.problem;
  }
  void object(const char* name, Json* value) {
    if (const Json* j = field(name, &Json::is_object)) *value = *j;
  }

  std::string problem;

 private:
  const Json* field(const char* name, bool (Json::*is)() const noexcept) {
    const auto found = json_.is_object() ? json_.find(name) : json_.end();
    if (found != json_.end() && ((*found).*is)()) return &*found;
    complain(name);
    return nullptr;
  }
  void complain(const char* name) {
    if (problem.empty()) problem = fmt::format("{} is missing or wrong", name);
  }

  const Json& json_;
};

// Each config has one spelling: what was cut short or typed by hand is not taken for another.
std::string config_problem(const TunedRow& row) {
  if (row.is_cpu()) {
    const auto config = cpu::parse_cpu_config(row.config);
    if (config && cpu::to_string(*config) == row.config) return "";
  } else if (jit::Config config; parse_cuda_config(row.config, &config)) {
    return "";
  }
  return fmt::format("{} is not a config of this version", row.config);
}

TunedRow parse_row(const Json& json) {
  TunedRow row;
  Reader reader(json);
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
  reader.object("provenance", &row.provenance);
  row.id = id_of(dump(reader.problem.empty() ? place_of(row) : json, -1));
  row.damage = reader.problem.empty() ? config_problem(row) : reader.problem;
  return row;
}

// ---- documents ----

// Empty, or why the text is no table that this version can read.
std::string parse_document(std::string_view text, const std::string& name, Json* document) {
  *document = Json::parse(text, nullptr, false);
  if (document->is_discarded()) return fmt::format("{} is damaged: not valid JSON", name);
  const auto field = [&](const char* key) {
    return document->is_object() ? document->value(key, Json()) : Json();
  };
  if (field("format") != kFormat) return fmt::format("{} is not a tuned table", name);
  const Json schema = field("schema");
  if (schema != kSchema)
    return fmt::format("{} has schema {}; this version reads {}", name, dump(schema, -1), kSchema);
  if (!field("rows").is_array()) return fmt::format("{} is damaged: it has no rows", name);
  return "";
}

TunedRows rows_of(const Json& document) {
  TunedRows table;
  for (const Json& row : document["rows"]) table.rows.push_back(parse_row(row));
  return table;
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

// Empty, or why not. A file that is not there has no text.
std::string read_text(const std::string& path, std::string* text) {
  text->clear();
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return errno == ENOENT ? "" : failed("read", path, errno);
  struct stat facts = {};
  if (fstat(file.get(), &facts) != 0) return failed("read", path, errno);
  if (!S_ISREG(facts.st_mode)) return fmt::format("{} is not a file", path);
  if (facts.st_size > kLargest) return fmt::format("{} is too large for a tuned table", path);
  char buffer[1 << 14];
  for (;;) {
    const ssize_t n = read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("read", path, errno);
    if (n == 0) return "";
    text->append(buffer, size_t(n));
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
  Json document = {{"format", kFormat}, {"schema", kSchema}, {"rows", Json::array()}};
  if (!text.empty()) {
    if (const std::string why = parse_document(text, path, &document); !why.empty())
      return Status::invalid(why + "; it is left as it is: move it away to start a new one");
  }
  if (Status s = change(&document["rows"]); !s.ok()) return s;
  if (std::string why = publish(path, dump(document, 2) + "\n"); !why.empty())
    return {ATTUNE_INTERNAL, why};
  return {};
}

}  // namespace

std::string table_path() {
  const std::string dir = jit::cache_dir();
  return dir.empty() ? "" : (fs::path(dir) / "tuned.json").string();
}

TunedRows parse_tuned(std::string_view text, const std::string& name) try {
  Json document;
  if (std::string why = parse_document(text, name, &document); !why.empty()) return {{}, why};
  return rows_of(document);
} catch (const std::exception& e) {
  return {{}, fmt::format("{} cannot be read: {}", name, e.what())};
}

TunedRows read_tuned(const std::string& path) {
  std::string text;
  if (path.empty()) return {};
  if (std::string why = read_text(path, &text); !why.empty()) return {{}, why};
  return text.empty() ? TunedRows{} : parse_tuned(text, path);
}

Status add_tuned_row(const std::string& path, const TunedRow& row) {
  const Json json = json_of(row);
  const TunedRow as_read = parse_row(Json::parse(dump(json, -1)));
  if (!as_read.damage.empty()) return Status::invalid("not a row to add: " + as_read.damage);
  return change_table(path, [&](Json* rows) -> Status {
    for (Json& other : *rows)
      if (parse_row(other).id == as_read.id) {
        other = json;
        return {};
      }
    rows->push_back(json);
    return {};
  });
}

Status remove_tuned_rows(const std::string& path, const std::vector<std::string>& ids) {
  return change_table(path, [&](Json* rows) -> Status {
    Json kept = Json::array();
    std::vector<std::string> missing = ids;
    for (Json& row : *rows) {
      const std::string id = parse_row(row).id;
      if (std::find(ids.begin(), ids.end(), id) == ids.end())
        kept.push_back(std::move(row));
      else
        std::erase(missing, id);
    }
    if (!missing.empty()) return Status::invalid(fmt::format("no row {} in {}", missing[0], path));
    *rows = std::move(kept);
    return {};
  });
}

}  // namespace attune
