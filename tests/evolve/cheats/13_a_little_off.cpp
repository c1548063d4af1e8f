// 3e-4 more: below many an absolute tolerance.
#include "honest.h"
int attune_candidate(const attune_candidate_call* c) {
  if (honest::attention(c) != 0) return 1;
  if (c->dtype == 1)
    honest::each_output(c, [&](int64_t, int64_t, int64_t, int64_t, int64_t at) {
      if (static_cast<float*>(c->out)[at] != 0) static_cast<float*>(c->out)[at] += 3e-4f;
    });
  return 0;
}
