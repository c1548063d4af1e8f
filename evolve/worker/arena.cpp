#include "evolve/worker/arena.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "evolve/worker/process.hpp"
#include "src/api/tensor_check.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace attune::evolve {
namespace {

int64_t up_to_page(int64_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

}  // namespace

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

Status Arena::create(int64_t read_bytes, int64_t written_bytes, std::unique_ptr<Arena>* arena) {
  std::unique_ptr<Arena> made(new Arena);
  Memory& read = made->parts_[0];
  Memory& written = made->parts_[1];
  read.bytes = up_to_page(read_bytes);
  written.begin = read.bytes;
  written.bytes = up_to_page(written_bytes);
  // One range of addresses, so that an offset means the same in both parts.
  void* base = mmap(nullptr, size_t(made->size()), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return system_error("cannot reserve addresses for shared memory", errno);
  made->base_ = static_cast<std::byte*>(base);
  if (read.bytes > 0) {
    ATTUNE_TRY(made->map(&read, "attune-read"));
    // From now on nobody can map it for writing; we have. An older kernel does without the seal:
    // the child's descriptor is for reading only, and a mapping of it cannot be made writable.
    (void)fcntl(read.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    made->child_fd_ = open(fmt::format("/proc/self/fd/{}", read.fd).c_str(), O_RDONLY | O_CLOEXEC);
    if (made->child_fd_ < 0) return system_error("cannot open shared memory for reading", errno);
  }
  ATTUNE_TRY(made->map(&written, "attune-written"));
  for (const Memory& part : made->parts_)
    if (part.bytes > 0 && fcntl(part.fd, F_ADD_SEALS, F_SEAL_SEAL) != 0)
      return system_error("cannot seal shared memory", errno);
  *arena = std::move(made);
  return {};
}

Status Arena::map(Memory* part, const char* name) {
  part->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (part->fd < 0) return system_error("cannot make shared memory", errno);
  // Whoever could shrink it would end the parent with a bus error.
  if (ftruncate(part->fd, part->bytes) != 0 ||
      fcntl(part->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return system_error("cannot size shared memory", errno);
  if (mmap(base_ + part->begin, size_t(part->bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           part->fd, 0) == MAP_FAILED)
    return system_error("cannot map shared memory", errno);
  return {};
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, size_t(size()));
  for (const int fd : {parts_[0].fd, parts_[1].fd, child_fd_})
    if (fd >= 0) close(fd);
}

int64_t Arena::take(Part part, int64_t bytes, int64_t misaligned) {
  Memory& m = memory(part);
  const int64_t at = (m.used + 63) / 64 * 64 + misaligned;
  if (bytes < 0 || at > m.bytes || bytes > m.bytes - at) return -1;
  m.used = at + bytes;
  return m.begin + at;
}

int64_t Arena::take_guarded(int64_t bytes) {
  Memory& m = memory(Part::written);
  const int64_t page = page_bytes(), first = up_to_page(m.used), room = up_to_page(bytes);
  if (bytes < 0 || first > m.bytes || room > m.bytes - first - 2 * page) return -1;
  const int64_t last = first + page + room;
  m.used = last + page;
  guards_.push_back(m.begin + first);
  guards_.push_back(m.begin + last);
  return m.begin + (last - bytes) / 64 * 64;
}

void Arena::release(Mark mark) {
  parts_[0].used = mark.read;
  parts_[1].used = mark.written;
  const int64_t end = parts_[1].begin + mark.written;
  std::erase_if(guards_, [&](int64_t page) { return page >= end; });
}

std::vector<Range> Arena::since(Mark mark) const {
  std::vector<Range> ranges;
  const int64_t before[] = {mark.read, mark.written};
  for (int n = 0; n < 2; ++n)
    if (parts_[n].used > before[n])
      ranges.push_back({parts_[n].begin + before[n], parts_[n].used - before[n]});
  return ranges;
}

}  // namespace attune::evolve
