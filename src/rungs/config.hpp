// How a rung computes, as the host sees it: the rung, and a value for each field of its config. The
// rung's table of fields says all that there is to know of a field: emission, hashing, printing,
// parsing and the optimiser's genes follow from it. Kernels see an aggregate (kernels/*/config.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/problem.h"

namespace attune {

class Rung;

// How deep a change reaches.
enum class Level { algorithm, implementation, hardware };

// What a search may make of a field. No values: it is no gene.
struct Search {
  std::span<const int> values;  // in order, where neighbours are similar
  const char* group = "";       // fields that one mutation operator changes
  Level level = Level::hardware;
  bool sketch = false;  // crossover keeps to parents that agree in it
  const char* meaning = "";
};

struct Field {
  const char* name;  // the aggregate's member
  const char* tag;   // in the printed form; empty: nobody chooses it, and it is always emitted
  int standard = 0;  // the aggregate's default, or what the rung settles
  std::span<const char* const> labels = {};  // of the values in emitted source; none: numbers
  bool optional = false;                     // printed only where it differs from the default
  bool compiled = true;  // false: the plan reads it and no kernel does, so it is not emitted
  Search search = {};
};

struct Config {
  static constexpr size_t kMostFields = 24;

  const Rung* rung = nullptr;
  std::array<int32_t, kMostFields> values{};  // one for each of the rung's fields; then 0

  bool operator==(const Config&) const = default;
};

int value_of(const Config& config, std::string_view field);  // 0: it has no such field

// "mma.wq4.wk1.wr32.bk64.st2.bs2.qr0.v1.sm0.pg0.kv0", and back. A config has one printed form: the
// fields in order, and no other spelling of a number.
std::string to_string(const Config& config);
bool parse_config(std::string_view text, Config* config, Pass pass = Pass::forward);

// What kernels are compiled for: what they do not read is at its default.
Config compiled(const Config& config);

}  // namespace attune
