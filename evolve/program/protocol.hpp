// What the parent and the worker of a program say to each other: records of fixed size, no text.
// The program shares the worker's memory, so nothing that comes back is believed, and no text of
// its own can come back.
#pragma once

#include <cstdint>

namespace attune::evolve::program {

// Descriptors of the worker. The library is sealed memory with the program's shared object.
inline constexpr int kRequestFd = 0, kReadFd = 3, kReplyFd = 4, kWrittenFd = 5, kLibraryFd = 6;

enum class Ask : uint32_t {
  load = 1,  // numbers: bytes in use of the arena's first part, begin and end of those of the
             // second, then the offsets of guard pages
  run = 2    // `count` calls, each with a reply of its own. Without any, one reply.
};

struct Request {
  uint64_t nonce[2];  // a reply repeats it: one that was written before cannot know it
  Ask ask;
  uint32_t count;  // of int64_t numbers that follow, or of calls
};
inline constexpr uint32_t kMostNumbers = 1 << 16;

// One call of a run. The parent sends it when the one before was answered: a program that knew
// several could compute them at once.
struct Call {
  uint64_t nonce[2];
  int64_t offset;  // of its record; kNoCall: a round trip, and nothing else
};
inline constexpr int64_t kNoCall = -1;

enum class Answer : uint32_t {
  ok = 1,
  returned,         // not 0: code
  threw,            // an exception
  bad_call,         // a record that is not in the arena, or points out of it
  beyond_contract,  // the contract of programs has no word for the call
  no_library,       // the shared object cannot be loaded
  no_entry,         // or does not define the function of the call's pass
  not_now           // loaded already, or not loaded yet
};

// Of a load, `code` has a bit for each part of the sandbox that the system lacks.
inline constexpr int32_t kNoNamespace = 1, kNoFilter = 2, kNoFileRules = 4;

struct Reply {
  uint64_t nonce[2];
  Answer answer;
  int32_t code;
};

}  // namespace attune::evolve::program
