#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  honest::each_output(
      c, [&](int64_t, int64_t, int64_t, int64_t, int64_t at) { honest::store(c, at, 0); });
  return 0;
}
