#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace attune::cli {
namespace {

// 0, or errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

// The file itself, so that a rename replaces what a link points to and not the link.
std::string resolve(const std::string& path) {
  char* real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return path;
  std::string resolved = real;
  std::free(real);
  return resolved;
}

}  // namespace

void print(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error != 0 && error != EPIPE)
    throw std::runtime_error(fmt::format("cannot write to stdout: {}", std::strerror(error)));
}

Output::Output(std::string option, std::string target)
    : option_(std::move(option)), target_(std::move(target)) {
  if (!wanted() || is_stdout()) return;
  target_ = resolve(target_);
  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail(EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    fd_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    temporary_ = fmt::format("{}.{}.tmp", target_, ::getpid());
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }
  if (fd_ < 0) {
    temporary_.clear();
    fail(errno);
  }
}

Output::~Output() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void Output::write(std::string_view text) {
  if (!wanted()) return;
  if (is_stdout()) return print(text);
  int error = write_all(fd_, text);
  // A full disk may show only here; a device has nothing to sync.
  if (error == 0 && !temporary_.empty() && ::fsync(fd_) != 0) error = errno;
  if (::close(std::exchange(fd_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && !temporary_.empty() && ::rename(temporary_.c_str(), target_.c_str()) != 0)
    error = errno;
  if (error != 0) fail(error);
  temporary_.clear();
}

void Output::fail(int error) const {
  throw std::runtime_error(
      fmt::format("{}: cannot write {}: {}", option_, target_, std::strerror(error)));
}

}  // namespace attune::cli
