// What the process of a candidate does when asked; one kind for each device. It is trusted with
// nothing, since the candidate shares its memory.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "evolve/candidate.h"
#include "evolve/worker.hpp"
#include "src/status.hpp"

namespace attune::evolve {

// The arena as this process sees it.
struct Memory {
  std::byte* base = nullptr;
  int64_t size = 0;

  // A call with addresses in memory of the same size that begins at `target`.
  Status get(int64_t offset, std::byte* target, ArenaCall* call) const;
  bool holds(const Range& range) const {
    return range.at >= 0 && range.bytes >= 0 && range.at <= size && range.bytes <= size - range.at;
  }
};

class Child {
 public:
  using Json = nlohmann::ordered_json;
  virtual ~Child() = default;

  // The reply's text comes through `text`.
  virtual Status load(const Json& request, std::string* text) = 0;
  virtual Status prepare(const Json& offsets) = 0;
  virtual Status go(bool whole_device) = 0;

  // Of devices with memory of their own.
  virtual Status compile(const Json& request, std::string* text);
  virtual Status upload(const Range& range);
  virtual Status fetch(const Range& range);
  virtual Status poison(const Range& range);
  virtual Status synchronize();
  virtual Status reserved_cache(std::string* text);
};

std::unique_ptr<Child> cpu_child(Memory memory, int threads);
std::unique_ptr<Child> cuda_child(Memory memory);

// A program: one shared object with one function.
using Entry = int (*)(const attune_candidate_call*);
Status find_function(const std::string& library, const char* name, void** function);
// What the contract of programs has no word for; nullptr: it has one for all of the problem.
const char* beyond_contract(const Problem& problem);
attune_candidate_call program_call(const ArenaCall& from);

}  // namespace attune::evolve
