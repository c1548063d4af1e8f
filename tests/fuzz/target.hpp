// What the driver and the targets of the fuzzer share. One seed is one case: the same seed makes
// the same calls in every process.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/check/random.hpp"

namespace attune::fuzz {

class Dice : public check::Random {
 public:
  using Random::Random;

  int64_t range(int64_t first, int64_t last) { return first + below(last - first + 1); }
  int number(int first, int last) { return int(range(first, last)); }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[size_t(below(int64_t(list.size())))];
  }
};

// What came of one case. It lies in memory that a worker shares with the driver, so that it
// survives a crash.
struct Outcome {
  static constexpr uint32_t kMostValues = 1 << 18;

  uint64_t calls;     // of the functions under test
  uint64_t accepted;  // calls that ran, and inputs that were taken
  uint64_t compared;  // results that were compared with the oracle
  int32_t answer;     // the same for every ISA
  uint32_t count;     // of the values below
  char doing[64];     // the function that runs now
  char notes[512];    // what the case is
  char failure[2048];
  float value[kMostValues];  // results
  float limit[kMostValues];  // how far each may be from the exact one; Inf: anything goes

  void clear() {
    calls = accepted = compared = 0;
    answer = 0;
    count = 0;
    doing[0] = notes[0] = failure[0] = '\0';
  }
  // Before a call of the function under test.
  void call(const char* function) {
    ++calls;
    copy(function, doing, sizeof(doing));
  }
  void note(std::string_view text) { copy(text, notes, sizeof(notes)); }
  // The first failure of a case is kept.
  void fail(std::string_view text) {
    if (failure[0] == '\0') copy(text, failure, sizeof(failure));
  }
  void add_value(double result, double allowed) {
    if (count == kMostValues) return;
    value[count] = float(result);
    limit[count++] = float(allowed);
  }

 private:
  static void copy(std::string_view text, char* to, size_t capacity) {
    const size_t length = std::min(text.size(), capacity - 1);
    text.copy(to, length);
    to[length] = '\0';
  }
};

// Lives in a worker, and runs one case after another there.
class Target {
 public:
  virtual ~Target() = default;
  virtual void run(uint64_t seed, Outcome* outcome) = 0;
};

// A case that failed once, and what its notes say: a seed means it only as long as the generator of
// its target stays as it is.
struct Kept {
  uint64_t seed;
  const char* notes;  // a pattern of fnmatch()
};

struct TargetInfo {
  const char* name;
  const char* meaning;
  bool each_isa;        // a worker for each instruction set, and their results are compared
  rlim_t memory_bytes;  // address space of a worker
  std::unique_ptr<Target> (*make)(const std::string& folder);  // an empty folder, 0700
  std::vector<Kept> kept;                                      // they run first
};

const std::vector<TargetInfo>& targets();

std::unique_ptr<Target> make_c_abi(const std::string& folder);
std::unique_ptr<Target> make_tuned(const std::string& folder);
std::unique_ptr<Target> make_cache(const std::string& folder);
std::unique_ptr<Target> make_run_db(const std::string& folder);

}  // namespace attune::fuzz
