// Files as calls read them. Not by std::ifstream, which takes want of memory for a file that is not
// there, or that has ended.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace attune {

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }  // below 0: it could not be opened, and errno says why

 private:
  int fd_;
};

// So many bytes; fewer when the file ends before.
bool read_bytes(int fd, size_t count, std::string* bytes);

// False: the file has not so many bytes there, or cannot be read.
bool read_at(int fd, off_t at, void* to, size_t count);

// The first megabyte of a file; empty where it cannot be read.
std::string read_text(const std::string& path);

}  // namespace attune
