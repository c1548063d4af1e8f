#include "src/jit/cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>

#include "src/cuda/fork.hpp"
#include "src/file.hpp"
#include "src/jit/folder.hpp"
#include "src/json.hpp"

namespace attune::jit {
namespace {

namespace fs = std::filesystem;

// A file: magic, length of the head, head (JSON), cubin, SHA-256 of all before it.
constexpr std::string_view kMagic = "ATTUNE-KERNEL\n";
constexpr int kSchema = 2;  // of the head; changes also with what parse_log takes from a log
constexpr size_t kDigestSize = sizeof(Digest);
constexpr size_t kLengthSize = 8;
constexpr std::string_view kSuffix = ".kernel";
constexpr std::string_view kTemporary = ".tmp-";  // what a writer's own name begins with
constexpr int64_t kStaleSeconds = 3600;           // no writer takes that long
constexpr off_t kLargest = off_t{1} << 30;

std::mutex g_cache_mutex;
const cuda::HeldOverFork<g_cache_mutex> g_cache_held;
std::string g_warning;

// Neither waits for the writer of a FIFO nor follows a link.
constexpr int kReadFlags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW;

// Only this process's user, or root, can have written what is there.
bool is_ours(const struct stat& facts) {
  return (facts.st_uid == geteuid() || facts.st_uid == 0) &&
         (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// A file that may be trusted, whole.
bool read_all(const std::string& path, std::string* bytes) {
  const File file(path, kReadFlags);
  struct stat facts = {};
  if (file.fd() < 0 || fstat(file.fd(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  if (!is_ours(facts) || facts.st_size > kLargest) return false;
  return read_bytes(file.fd(), size_t(facts.st_size), bytes);
}

// The file begins as an entry does, as far as it goes. Whose it is does not matter.
bool begins_as_entry(const std::string& path) {
  const File file(path, kReadFlags);
  struct stat facts = {};
  std::string bytes;
  if (file.fd() < 0 || fstat(file.fd(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  return read_bytes(file.fd(), kMagic.size(), &bytes) && kMagic.starts_with(bytes);
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

std::string entry_path(const std::string& dir, const Digest& key) {
  return (fs::path(dir) / (hex(key) + std::string(kSuffix))).string();
}

std::string as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string head_of(const std::string& key, const CacheEntry& entry) {
  JsonWriter json(JsonWriter::Layout::compact);
  json.object([&] {
    json.field("schema", kSchema);
    json.field("key", key);
    json.field("id", entry.id);
    json.field("arch", entry.arch);
    json.field("seconds", entry.seconds);
    json.field("cpu_seconds", entry.cpu_seconds);
    json.array("resources", [&] {
      for (const Resources& r : entry.resources)
        json.object([&] {
          json.field("entry", r.entry);
          json.field("registers", r.registers);
          json.field("stack", r.stack);
          json.field("spill_stores", r.spill_stores);
          json.field("spill_loads", r.spill_loads);
          json.field("smem", r.smem);
        });
    });
    json.array("warnings", [&] {
      for (const std::string& warning : entry.warnings) json.value(warning);
    });
    json.field("cubin_bytes", entry.cubin.size());
  });
  return json.take();
}

std::string pack(const std::string& key, const CacheEntry& entry) {
  const std::string head = head_of(key, entry);
  std::string bytes(kMagic);
  bytes += fmt::format("{:>{}}", head.size(), kLengthSize);
  bytes += head;
  bytes += entry.cubin;
  bytes += as_text(sha256(bytes));
  return bytes;
}

// A field that is not there keeps its default; false: it has another type.
template <class T>
bool take(const JsonValue& object, std::string_view name, T* value) {
  const JsonValue found = object.find(name);
  return !found.exists() || found.get(value);
}

// each(value) for those of a list that may not be there, until one is refused.
template <class Each>
bool take_list(const JsonValue& object, std::string_view name, const Each& each) {
  const JsonValue list = object.find(name);
  bool good = !list.exists() || list.is_array();
  list.each([&](const JsonValue&, const JsonValue& value) { good = good && each(value); });
  return good;
}

bool parse_head(std::string_view text, const std::string& key, size_t cubin_bytes,
                CacheEntry* entry) {
  if (!why_not_json(text).empty()) return false;
  const JsonValue head(text);
  int schema = 0;
  int64_t bytes = 0;
  std::string written_key;
  if (!take(head, "schema", &schema) || schema != kSchema) return false;
  if (!take(head, "key", &written_key) || written_key != key) return false;
  if (!take(head, "cubin_bytes", &bytes) || bytes != int64_t(cubin_bytes)) return false;
  return take(head, "id", &entry->id) && take(head, "arch", &entry->arch) &&
         take(head, "seconds", &entry->seconds) && take(head, "cpu_seconds", &entry->cpu_seconds) &&
         take_list(
             head, "warnings",
             [&](const JsonValue& value) { return value.get(&entry->warnings.emplace_back()); }) &&
         take_list(head, "resources", [&](const JsonValue& value) {
           Resources& r = entry->resources.emplace_back();
           return value.is_object() && take(value, "entry", &r.entry) &&
                  take(value, "registers", &r.registers) && take(value, "stack", &r.stack) &&
                  take(value, "spill_stores", &r.spill_stores) &&
                  take(value, "spill_loads", &r.spill_loads) && take(value, "smem", &r.smem);
         });
}

bool unpack(std::string_view bytes, const std::string& key, CacheEntry* entry) {
  if (bytes.size() < kMagic.size() + kLengthSize + kDigestSize || !bytes.starts_with(kMagic))
    return false;
  const std::string_view body = bytes.substr(0, bytes.size() - kDigestSize);
  if (as_text(sha256(body)) != bytes.substr(body.size())) return false;
  const std::string length(body.substr(kMagic.size(), kLengthSize));
  const size_t head_size = std::strtoul(length.c_str(), nullptr, 10);
  std::string_view rest = body.substr(kMagic.size() + kLengthSize);
  if (head_size > rest.size()) return false;
  CacheEntry fresh;
  fresh.cubin = rest.substr(head_size);
  if (!parse_head(rest.substr(0, head_size), key, fresh.cubin.size(), &fresh)) return false;
  *entry = std::move(fresh);
  return true;
}

int64_t age_of(const fs::path& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return 0;
  return std::max<int64_t>(0, int64_t(std::time(nullptr)) - int64_t(facts.st_mtime));
}

// visit(path) for the files of the folder whose names we give. A folder that cannot be read has
// none.
template <class Visit>
void each_file(const std::string& dir, const Visit& visit) {
  each_name(dir, [&](std::string_view name) {
    if (name.ends_with(kSuffix) || name.starts_with(kTemporary)) visit(fs::path(dir) / name);
  });
}

bool is_temporary(const fs::path& path) { return path.filename().string().starts_with(kTemporary); }

void remove_stale(const std::string& dir) {
  each_file(dir, [](const fs::path& path) {
    if (is_temporary(path) && age_of(path) > kStaleSeconds && begins_as_entry(path.string()))
      unlink(path.c_str());
  });
}

std::string temporary_path(const std::string& dir) {
  static std::atomic<unsigned> counter{0};
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  // The clock too: process numbers repeat between containers that share a folder.
  return fmt::format("{}/{}{}-{:x}-{}", dir, kTemporary, getpid(),
                     uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec), counter++);
}

// A file that is gone at the end, however that comes, unless it got another name.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (made_) unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

  // 0, or errno.
  int write(std::string_view bytes) {
    const File file(path_, O_WRONLY | O_CREAT | O_EXCL);
    if (file.fd() < 0) return errno;
    made_ = true;
    return write_all(file.fd(), bytes);
  }

 private:
  const std::string path_;
  bool made_ = false;
};

std::string failed(const char* what, const std::string& path, int error) {
  return fmt::format("cannot {} {}: {}", what, path, std::strerror(error));
}

}  // namespace

std::string cache_dir() {
  if (const char* dir = secure_getenv("ATTUNE_CACHE_DIR"); dir != nullptr && dir[0] != '\0')
    return dir;
  if (const char* dir = secure_getenv("XDG_CACHE_HOME"); dir != nullptr && dir[0] == '/')
    return std::string(dir) + "/attune";
  if (const char* home = secure_getenv("HOME"); home != nullptr && home[0] == '/')
    return std::string(home) + "/.cache/attune";
  return "";
}

std::string why_refused(const std::string& dir) {
  struct stat facts = {};
  if (stat(dir.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) || is_ours(facts)) return "";
  if (facts.st_uid != geteuid() && facts.st_uid != 0)
    return fmt::format(
        "{} belongs to user {}, and this process is of user {}: name a folder of your own in "
        "ATTUNE_CACHE_DIR",
        dir, facts.st_uid, geteuid());
  return fmt::format(
      "others may write into {} (mode {:04o}): take that right away (chmod go-w), or name another "
      "folder in ATTUNE_CACHE_DIR",
      dir, facts.st_mode & 07777);
}

int make_cache_dir(const std::string& dir) {
  fs::path path(dir);
  if (!path.has_filename()) path = path.parent_path();  // "cache/"
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) return error.value();
  if (mkdir(path.c_str(), 0700) == 0) return 0;
  const int problem = errno;
  return problem == EEXIST && fs::is_directory(path, error) ? 0 : problem;
}

bool read_entry(const std::string& dir, const Digest& key, CacheEntry* entry) {
  std::string bytes;
  return why_refused(dir).empty() && read_all(entry_path(dir, key), &bytes) &&
         unpack(bytes, hex(key), entry);
}

std::string write_entry(const std::string& dir, const Digest& key, const CacheEntry& entry) {
  if (const int error = make_cache_dir(dir); error != 0)
    return failed("make the folder", dir, error);
  if (std::string why = why_refused(dir); !why.empty()) return why;
  remove_stale(dir);

  const std::string path = entry_path(dir, key);
  Temporary temporary(temporary_path(dir));
  if (const int problem = temporary.write(pack(hex(key), entry)); problem != 0)
    return failed("write", temporary.path(), problem);
  CacheEntry other;
  if (read_entry(dir, key, &other)) return "";  // somebody was faster
  if (rename(temporary.path().c_str(), path.c_str()) != 0) return failed("make", path, errno);
  return "";
}

std::string why_not_writable(const std::string& dir) {
  if (dir.empty()) return "ATTUNE_CACHE_DIR, XDG_CACHE_HOME and HOME are all unset";
  if (std::string why = why_refused(dir); !why.empty()) return why;
  std::error_code error;
  fs::path folder = fs::absolute(dir, error);  // it, or where it would be made
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) return failed("write", folder.string(), ENOTDIR);
  if (access(folder.c_str(), W_OK | X_OK) != 0) return failed("write", folder.string(), errno);
  return "";
}

std::vector<CacheItem> list_cache(const std::string& dir) {
  std::vector<CacheItem> items;
  if (!why_refused(dir).empty()) return items;
  each_file(dir, [&](const fs::path& path) {
    if (is_temporary(path)) return;
    std::string bytes;
    CacheItem item{path.string(), path.stem().string(), {}, 0, age_of(path)};
    if (!read_all(item.path, &bytes) || !unpack(bytes, item.key, &item.entry)) return;
    item.entry.cubin.clear();
    item.bytes = int64_t(bytes.size());
    items.push_back(std::move(item));
  });
  std::sort(items.begin(), items.end(), [](const CacheItem& a, const CacheItem& b) {
    return std::tie(a.age_seconds, a.entry.id, a.key) < std::tie(b.age_seconds, b.entry.id, b.key);
  });
  return items;
}

CacheSize cache_size(const std::string& dir) {
  CacheSize size;
  each_file(dir, [&](const fs::path& path) {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error || is_temporary(path)) return;
    ++size.entries;
    size.bytes += int64_t(bytes);
  });
  return size;
}

Cleared clear_cache(const std::string& dir) {
  Cleared cleared;
  each_file(dir, [&](const fs::path& path) {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    const bool temporary = is_temporary(path);
    // A young temporary file may belong to a writer that is still at work; it would lose its entry.
    if (temporary && age_of(path) < 10) return;
    if (!begins_as_entry(path.string())) {
      if (!temporary) ++cleared.others;
    } else if (unlink(path.c_str()) != 0) {
      if (!temporary) ++cleared.kept;
    } else {
      if (!temporary) ++cleared.removed.entries;
      if (!error) cleared.removed.bytes += int64_t(bytes);
    }
  });
  return cleared;
}

std::string cache_warning() {
  std::lock_guard lock(g_cache_mutex);
  return g_warning;
}

void warn_cache(const std::string& text) {
  std::lock_guard lock(g_cache_mutex);
  if (g_warning.empty()) g_warning = text;
}

}  // namespace attune::jit
