#include "evolve/judge/evaluation.hpp"

#include <cstddef>
#include <iterator>

namespace attune::evolve {
namespace {

// In the order of the enums.
constexpr const char* kVerdicts[] = {
    "ok",          "invalid", "compile_failed", "compile_timeout", "launch_failed",
    "run_timeout", "crashed", "wrong_result",   "cheated"};
constexpr const char* kStages[] = {"valid", "compile", "check", "race", "measure", "promote"};

static_assert(std::size(kVerdicts) == std::size_t(Verdict::cheated) + 1);
static_assert(std::size(kStages) == std::size_t(Stage::promote) + 1);

template <class Enum, std::size_t N>
const char* name_in(const char* const (&names)[N], Enum value) {
  return std::size_t(value) < N ? names[std::size_t(value)] : "?";
}

template <class Enum, std::size_t N>
bool parse_in(const char* const (&names)[N], const std::string& name, Enum* value) {
  for (std::size_t i = 0; i < N; ++i) {
    if (name != names[i]) continue;
    *value = Enum(i);
    return true;
  }
  return false;
}

}  // namespace

const char* verdict_name(Verdict verdict) { return name_in(kVerdicts, verdict); }
const char* stage_name(Stage stage) { return name_in(kStages, stage); }

bool parse_verdict(const std::string& name, Verdict* verdict) {
  return parse_in(kVerdicts, name, verdict);
}
bool parse_stage(const std::string& name, Stage* stage) { return parse_in(kStages, name, stage); }

}  // namespace attune::evolve
