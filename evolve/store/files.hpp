// Files of a run's folder: which file systems can carry it, who has it, and files that appear whole
// or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/status.hpp"

namespace attune::evolve {

// SQLite's WAL shares memory between processes through a mapped file, and trusts locks and fsync.
enum class WalSupport {
  yes,
  no,
  probe  // depends on how it is mounted: a shared mapping is tried
};
struct FileSystem {
  const char* name = "";
  WalSupport wal = WalSupport::yes;
};
FileSystem file_system_of(uint64_t f_type);  // statfs's; an unknown one is a local disk

// Refuses a folder that cannot carry a WAL, with advice.
Status check_file_system(const std::string& folder);

// Held by whoever writes in the folder; gone with the process, however it ends.
class FolderLock {
 public:
  static Status take(const std::string& folder, std::unique_ptr<FolderLock>* lock);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

// Beside its name first, then renamed.
Status write_file(const std::string& path, std::string_view text);
Status make_folder(const std::string& folder);

// Whether there is room for another compiled kernel; the reason why not.
Status check_room(const std::string& folder);

// Files that processes which are gone had begun to write here: NAME.PID.tmp.
void remove_leftovers(const std::string& folder);

}  // namespace attune::evolve
