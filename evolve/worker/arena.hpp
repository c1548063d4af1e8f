// Memory that the parent shares with the processes of candidates. It has two parts: what calls read
// (inputs and the records of calls), which a child can only read, and what they write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/params.h"
#include "src/status.hpp"

namespace attune::evolve {

// A part of the arena, by offset: parent and child see it at different addresses.
struct Range {
  int64_t at, bytes;
};

int64_t page_bytes();  // of this system

class Arena {
 public:
  enum class Part { read, written };

  // The kernel refuses a child that maps the first part for writing, and sizes are fixed.
  static Status create(int64_t read_bytes, int64_t written_bytes, std::unique_ptr<Arena>* arena);
  // One part that a child may write to: the copy of a device's memory.
  static Status create(int64_t bytes, std::unique_ptr<Arena>* arena) {
    return create(0, bytes, arena);
  }
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* base() const { return base_; }
  int64_t size() const { return parts_[1].begin + parts_[1].bytes; }
  int64_t bytes(Part part) const { return parts_[part == Part::read ? 0 : 1].bytes; }
  // What a child is given: a descriptor for reading, and one for both; -1: no such part.
  int fd(Part part) const { return part == Part::read ? child_fd_ : parts_[1].fd; }

  // The next free bytes, aligned to 64 plus `misaligned`; -1 when the part is full. reset() frees
  // all.
  int64_t take(Part part, int64_t bytes, int64_t misaligned = 0);
  // The same with a page before and a page behind it that a child can neither read nor write. The
  // end lies less than 64 bytes before the second of them.
  int64_t take_guarded(int64_t bytes);
  std::span<const int64_t> guards() const { return guards_; }  // offsets of such pages
  void reset() { release({}); }

  // What was taken after a mark can be given back.
  struct Mark {
    int64_t read = 0, written = 0;  // bytes in use of each part
  };
  Mark mark() const { return {parts_[0].used, parts_[1].used}; }
  void release(Mark mark);
  std::vector<Range> since(Mark mark) const;

 private:
  struct Memory {
    int fd = -1;
    int64_t begin = 0, bytes = 0, used = 0;
  };
  Arena() = default;
  Memory& memory(Part part) { return parts_[part == Part::read && parts_[0].bytes > 0 ? 0 : 1]; }
  Status map(Memory* part, const char* name);

  std::byte* base_ = nullptr;
  Memory parts_[2];
  int child_fd_ = -1;  // of the first part, for reading
  std::vector<int64_t> guards_;
};

// One call as it lies in the arena. Its pointers are offsets into the arena plus one; 0 is null.
struct ArenaCall {
  Problem problem;
  Params params;
  GradParams grads = {};  // of a backward pass
};
template <class T>
T* as_offset(int64_t offset) {
  return reinterpret_cast<T*>(offset + 1);
}

}  // namespace attune::evolve
