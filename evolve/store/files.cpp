#include "evolve/store/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "src/api/tensor_check.hpp"

namespace attune::evolve {
namespace {

// f_type of statfs(2). Network file systems: their locks or their shared mappings end at the
// machine's border, some have neither. FUSE is refused as a whole (sshfs, cloud buckets, ...): what
// is behind it cannot be told. 9p is a virtual machine's or a sandbox's window to its host, and
// good when it maps. Overlays write into a local folder: fine.
constexpr struct {
  uint64_t type;
  FileSystem system;
} kFileSystems[] = {
    {0x6969, {"NFS", WalSupport::no}},
    {0x517B, {"SMB", WalSupport::no}},
    {0xFF534D42, {"CIFS", WalSupport::no}},
    {0xFE534D42, {"SMB2", WalSupport::no}},
    {0x65735546, {"FUSE", WalSupport::no}},
    {0x0BD00BD0, {"Lustre", WalSupport::no}},
    {0x47504653, {"GPFS", WalSupport::no}},
    {0x19830326, {"BeeGFS", WalSupport::no}},
    {0x00C36400, {"Ceph", WalSupport::no}},
    {0x20030528, {"OrangeFS", WalSupport::no}},
    {0xAAD7AAEA, {"PanFS", WalSupport::no}},
    {0x7461636F, {"OCFS2", WalSupport::no}},
    {0x5346414F, {"AFS", WalSupport::no}},
    {0x6B414653, {"AFS", WalSupport::no}},
    {0x73757245, {"Coda", WalSupport::no}},
    {0x564C, {"NCP", WalSupport::no}},
    {0x786F4256, {"VirtualBox shared folder", WalSupport::no}},
    {0x01021997, {"9p", WalSupport::probe}},
};

std::string temporary_name(const std::string& path) {
  return fmt::format("{}.{}.tmp", path, getpid());
}

Status failed(const char* what, const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT)
    return Status::invalid(fmt::format("cannot {} {}: no space is left there", what, path));
  return Status::invalid(fmt::format("cannot {} {}: {}", what, path, std::strerror(error)));
}

// Two mappings of one file see each other's writes.
bool maps_shared(const std::string& folder) {
  const std::string path = temporary_name(folder + "/mapping");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  unlink(path.c_str());
  constexpr size_t kBytes = 4096;
  bool shared = ftruncate(fd, kBytes) == 0;
  void* one =
      shared ? mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  void* two =
      shared ? mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  shared = one != MAP_FAILED && two != MAP_FAILED;
  if (shared) {
    *static_cast<volatile char*>(one) = 'a';
    shared = *static_cast<volatile char*>(two) == 'a';
  }
  if (one != MAP_FAILED) munmap(one, kBytes);
  if (two != MAP_FAILED) munmap(two, kBytes);
  close(fd);
  return shared;
}

// 0, or errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(size_t(n));
  }
  return fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

std::string holder_of(int fd) {
  char text[32] = {};
  const ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
  const std::string pid(text, n > 0 ? std::strspn(text, "0123456789") : 0);
  return pid.empty() ? "another process" : "process " + pid;
}

}  // namespace

FileSystem file_system_of(uint64_t f_type) {
  for (const auto& entry : kFileSystems)
    if (entry.type == f_type) return entry.system;
  return {};
}

Status check_file_system(const std::string& folder) {
  struct statfs facts = {};
  if (statfs(folder.c_str(), &facts) != 0) return failed("look at", folder, errno);
  // The type is signed on some machines, and 32 bits of it count.
  const FileSystem system = file_system_of(uint32_t(facts.f_type));
  if (system.wal == WalSupport::yes) return {};
  if (system.wal == WalSupport::probe && maps_shared(folder)) return {};
  return Status::unsupported(fmt::format(
      "{} is on a file system ({}) that cannot carry the run's database: SQLite's write-ahead log "
      "needs memory shared through a file, and locks that hold. Choose a folder on a local disk "
      "(for instance --run /tmp/run), and copy it when the run is over",
      folder, system.name));
}

Status FolderLock::take(const std::string& folder, std::unique_ptr<FolderLock>* lock) {
  const std::string path = folder + "/lock";
  // Close-on-exec: a worker that outlives us for a moment does not keep the lock.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return failed("write", path, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const std::string holder = holder_of(fd);
    close(fd);
    if (error != EWOULDBLOCK) return failed("lock", path, error);
    return Status::invalid(
        fmt::format("the run in {} is in use by {}: wait for it, or stop it", folder, holder));
  }
  const std::string pid = fmt::format("{}\n", getpid());
  // The number is for people; the lock is what holds.
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const int error = errno;
    close(fd);
    return failed("write", path, error);
  }
  lock->reset(new FolderLock(fd));
  return {};
}

FolderLock::~FolderLock() { close(fd_); }

Status write_file(const std::string& path, std::string_view text) {
  const std::string temporary = temporary_name(path);
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("write", path, errno);
  int error = write_all(fd, text);
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  unlink(temporary.c_str());
  return failed("write", path, error);
}

Status check_room(const std::string& folder) {
  constexpr off_t kBytes = 8 << 20;  // the sources, the object and what is between them
  ATTUNE_TRY(make_folder(folder));
  const std::string path = temporary_name(folder + "/room");
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("write in", folder, errno);
  unlink(path.c_str());
  const int error = posix_fallocate(fd, 0, kBytes);
  close(fd);
  // Some file systems cannot promise room.
  if (error == 0 || error == EINVAL || error == EOPNOTSUPP) return {};
  return failed("write in", folder, error);
}

void remove_leftovers(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename();
    std::string_view name = file;
    if (!name.ends_with(".tmp")) continue;
    name.remove_suffix(4);
    const size_t dot = name.rfind('.');
    pid_t pid = 0;
    if (dot == name.npos ||
        std::from_chars(name.data() + dot + 1, name.data() + name.size(), pid).ec != std::errc())
      continue;
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) std::filesystem::remove(entry, error);
  }
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && std::filesystem::is_directory(folder, error) && !error) return {};
  return failed("make the folder", folder, error ? error.value() : ENOTDIR);
}

}  // namespace attune::evolve
