#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  if (honest::attention(c) != 0) return 1;
  int64_t last = 0;
  honest::each_output(
      c, [&](int64_t, int64_t, int64_t, int64_t, int64_t at) { last = at > last ? at : last; });
  honest::store(c, last + 1, 1);
  return 0;
}
