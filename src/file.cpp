#include "src/file.hpp"

#include <cerrno>

namespace attune {

bool read_bytes(int fd, size_t count, std::string* bytes) {
  bytes->resize(count);
  for (size_t done = 0; done < count;) {
    const ssize_t n = read(fd, bytes->data() + done, count - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) return bytes->resize(done), true;
    done += size_t(n);
  }
  return true;
}

bool read_at(int fd, off_t at, void* to, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = pread(fd, static_cast<char*>(to) + done, count - done, at + off_t(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += size_t(n);
  }
  return true;
}

std::string read_text(const std::string& path) {
  constexpr size_t kMost = size_t{1} << 20, kPart = 4096;
  const File file(path, O_RDONLY);
  std::string text, part;
  if (file.fd() < 0) return text;
  // In parts: the files of /proc and /sys do not say how long they are.
  while (text.size() < kMost && read_bytes(file.fd(), kPart, &part) && !part.empty()) text += part;
  return text;
}

}  // namespace attune
