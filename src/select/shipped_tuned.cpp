// Generated: the rows that ship, as `attune evolve --promote --table FILE` wrote them. No row is
// written by hand.
#include "src/select/tuned.hpp"

namespace attune {

const char* shipped_tuned_text() {
  return R"json({
  "format": "attune tuned table",
  "schema": 1,
  "rows": []
}
)json";
}

}  // namespace attune
