// What the process of a candidate does when asked; one kind for each device. It is trusted with
// nothing, since the candidate shares its memory.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "evolve/worker/program_call.hpp"
#include "evolve/worker/worker.hpp"
#include "src/status.hpp"

namespace attune::evolve {

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
  virtual Status share(const Json& ranges, std::string* text);
  virtual Status worst_rows(const Json& offsets, std::string* text);
  virtual Status shared_inputs(std::string* text);
  virtual Status synchronize();
  virtual Status reserved_cache(std::string* text);
};

std::unique_ptr<Child> cpu_child(Memory memory, int threads);
std::unique_ptr<Child> cuda_child(Memory memory);

// A call of the arena, with addresses that begin at `target`.
Status find_call(const Memory& memory, int64_t offset, std::byte* target, ArenaCall* call);

// A shared object, and one function of it.
Status find_function(const std::string& library, const char* name, void** function);

}  // namespace attune::evolve
